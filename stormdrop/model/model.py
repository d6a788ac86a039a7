"""A compiled model as users call it. The implementations:

    runtime.fixed_model   fixed sizes: an image and its weights
    runtime.open_model    open dimensions: a model of fixed sizes for each tuple of input shapes
    driver.mixed          in parts, of which onnxruntime runs some

    y = model(x)                          # inputs in the order of model.inputs; several outputs come as a tuple
    model(x, out=y)
    model(input=x)                        # inputs by name
    named = model.run({"input": x})       # arrays by name, in and out; run(…, outputs=["logits"]) gives some
    with model: ...                       # code and weights are freed in the end, as by model.close()

Arrays are taken, and calls of several Python threads run, as `model.executable` says.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence

from numpy.typing import ArrayLike

from stormdrop.base.errors import UserError
from stormdrop.device.arrays import Array
from stormdrop.device.device import Bytes, Seconds
from stormdrop.model.executable import Executable
from stormdrop.model.image import Image, Port
from stormdrop.model.profile import Profile
from stormdrop.model.shared_weights import WeightChunk


class Model(Executable[Port]):
    """A compiled model: of fixed sizes, with open dimensions (`OpenModel`), or in parts (`MixedModel`).

    `image`, `weights` and `chunks` belong to a model of fixed sizes; the other models raise AttributeError.
    """

    threads: int
    """The number of threads that run the model."""
    ordinal: int = 0
    """CUDA's number of the GPU that runs the model; 0 for a model of the CPU."""

    @property
    @abstractmethod
    def origins(self) -> Mapping[str, str]:
        """The origin of each task's schedule, by the task's digest: default, verdict or given. Empty for a loaded
        model."""

    @property
    def image(self) -> Image:
        """The model as data: kernels, calls and addresses."""
        raise self._without("image")

    @property
    def weights(self) -> Bytes:
        """All packed constants; a copy where they are in several chunks."""
        raise self._without("weights")

    @property
    def chunks(self) -> tuple[WeightChunk, ...]:
        """The weights on the device: their concatenation is the image's."""
        raise self._without("chunks")

    @abstractmethod
    def attach(self) -> None:
        """Load weights and kernels onto the device, if they are not there yet. Raises UserError, BuildError."""

    def run(self, inputs: Mapping[str, ArrayLike], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        """All outputs by name, or those named by `outputs`.

        Raises UserError for arrays it does not take, and for missing and unknown names.
        """
        if not isinstance(inputs, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UserError(f"run takes arrays by name, {{{self._known()}: array}}, not {type(inputs).__name__}")
        if isinstance(outputs, str):
            raise UserError(f"outputs= is a list of names: [{outputs!r}]")
        known = [port.name for port in self.outputs]
        for name in outputs or ():
            if name not in known:
                raise UserError(f"{self.name} has no output {name!r}; its outputs: {', '.join(map(repr, known))}")
        results = self(*self._in_order((), inputs))
        found = dict(zip(known, results if len(known) != 1 else [results]))
        return found if outputs is None else {name: found[name] for name in outputs}

    @abstractmethod
    def bench(self, *inputs: ArrayLike, repeats: int = 100) -> Seconds:
        """Seconds of each of `repeats` whole runs, after a few that do not count."""

    @abstractmethod
    def profile(self, *inputs: ArrayLike, repeats: int = 100, standalone: bool = False) -> Profile:
        """The time of each kernel inside the running model, and where it went; with `standalone`, also of each one
        alone: run again and again, and in the state in which tuning times it.
        """

    @property
    def model(self) -> Model:
        """The model itself: what runs is the same where dimensions are open and where they are not."""
        return self

    @abstractmethod
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file that `load_compiled` reads, on this machine or one like it. Raises UserError."""

    def check_can_be_saved(self) -> None:
        """Raises UserError for a model that no file can hold."""

    def _without(self, name: str) -> AttributeError:
        """Returns the error of a model that has no attribute of this name."""
        return AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _known(self) -> str:
        return ", ".join(repr(port.name) for port in self.inputs) or "none"
