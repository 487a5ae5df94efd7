"""What is done to a `.keras` archive before anything in it is trusted: nothing of it runs, and little is believed."""
