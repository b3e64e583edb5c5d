"""Classification: a picture in, the name of its class out."""
