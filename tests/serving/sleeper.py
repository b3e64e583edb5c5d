import time

time.sleep(60)  # a decoder that never answers
