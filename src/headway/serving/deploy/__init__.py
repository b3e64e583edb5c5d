"""Deploy a bundle as an HTTP service: its container image, and the requests for Cloud Run and Vertex AI."""
