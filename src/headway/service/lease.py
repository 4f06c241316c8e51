"""What a request holds while it uses a model."""

from collections.abc import Callable

from headway.errors import UnsupportedFeature
from headway.service.served_model import ServedModel
from headway.worker.client import WorkerClient
from headway.worker.resident import ResidentClient


class Lease:
    """Keeps a model resident until release(), which must be called once; again: nothing."""

    def __init__(self, model: ServedModel, client: ResidentClient, on_end: Callable[[bool], None]) -> None:
        self.model = model
        self.client = client
        self._on_end = on_end
        self._is_released = False

    @property
    def worker(self) -> WorkerClient:
        """The client of a process that speaks tokens. Raises UnsupportedFeature where it speaks none."""
        if not isinstance(self.client, WorkerClient):
            raise UnsupportedFeature(
                f"{self.model.id} is a model of type {self.model.config.type}: it generates no tokens", param="model"
            )
        return self.client

    def release(self, has_served: bool) -> None:
        """`has_served`: the worker did what was asked."""
        if not self._is_released:
            self._is_released = True
            self._on_end(has_served)
