"""What a server tells Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


class Gauges:
    """A registry of its own, so that two servers in one process do not share numbers."""

    def __init__(self) -> None:
        self._registry = made = CollectorRegistry()
        self.requests = Counter("headway_requests", "Requests", ["route", "status"], registry=made)
        self.seconds = Histogram(
            "headway_request_seconds", "Until the answer", ["route"], registry=made, buckets=_SECONDS
        )
        self.batches = Histogram("headway_batch_instances", "Instances in a batch", registry=made, buckets=_BATCHES)
        self.model_seconds = Histogram(
            "headway_model_seconds", "The model's time for a batch", registry=made, buckets=_SECONDS
        )
        self.waiting = Gauge("headway_waiting_instances", "Instances in the queue", registry=made)
        self.ready = Gauge("headway_ready", "1 while requests are taken", registry=made)

    def batch(self, instances: int, seconds: float) -> None:
        self.batches.observe(instances)
        self.model_seconds.observe(seconds)

    def page(self) -> bytes:
        return generate_latest(self._registry)
