"""A compiled model as users call it. The implementations:

    FixedModel    fixed sizes: an image and its weights
    OpenModel     open dimensions: a model of fixed sizes for each tuple of input shapes
    MixedModel    a model in parts, some of them in onnxruntime

    y = model(x)                          # inputs in the order of model.inputs; several outputs are a tuple
    model(x, out=y)
    model(input=x)                        # inputs by name
    named = model.run({"input": x})       # arrays by name, in and out; run(…, outputs=["logits"]) gives some
    with model: ...                       # code and weights are freed at the end, as by model.close()

`model.executable` describes the arrays of a call, and calls of several Python threads.
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
        """All packed constants; a copy if they are in several chunks."""
        raise self._without("weights")

    @property
    def chunks(self) -> tuple[WeightChunk, ...]:
        """The weights on the device: their concatenation is the image's."""
        raise self._without("chunks")

    @abstractmethod
    def attach(self) -> None:
        """Loads weights and kernels onto the device, if they are not there yet. Raises UserError, BuildError."""

    def run(self, inputs: Mapping[str, ArrayLike], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        """Runs the model on arrays by name, and returns all outputs by name, or the outputs named by `outputs`.

        Raises UserError for arrays that do not match, and for missing and unknown names.
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
        arrays = dict(zip(known, results if len(known) != 1 else [results]))
        return arrays if outputs is None else {name: arrays[name] for name in outputs}

    @abstractmethod
    def bench(self, *inputs: ArrayLike, repeats: int = 100) -> Seconds:
        """Returns the seconds of each of `repeats` whole runs, after a few uncounted runs."""

    @abstractmethod
    def profile(self, *inputs: ArrayLike, repeats: int = 100, standalone: bool = False) -> Profile:
        """Returns the time of each kernel inside the running model, by its causes.

        With `standalone`, each kernel is also timed alone: run again and again, and in the state in which tuning times
        it.
        """

    @property
    def model(self) -> Model:
        """The model itself; of a padded model, the model for larger arrays."""
        return self

    @abstractmethod
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model to a file that `sd.load` opens, on this machine or one like it. Raises UserError."""

    def check_can_be_saved(self) -> None:
        """Raises UserError for a model that no file can hold."""

    def _without(self, name: str) -> AttributeError:
        """Returns the error of a model that has no attribute of this name."""
        return AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _known(self) -> str:
        return ", ".join(repr(port.name) for port in self.inputs) or "none"
