"""The FastAPI server: protocols and codecs above the waist of `app.calls`, the engine and its programs below it."""
