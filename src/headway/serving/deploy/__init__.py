"""A bundle behind HTTP somewhere else: its container image, and what Cloud Run and Vertex AI are asked for."""
