"""The protocols that the server speaks: one file each, with the constant `FACE`."""
