"""The HTML page of an explanation: text, pictures, style."""
