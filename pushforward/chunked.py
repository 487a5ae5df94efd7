"""A long sequence through a server without memory, piece by piece: the states out of one request go into the next.

Forward derivatives carry the tangents of the states along. Reverse derivatives pull the cotangents of the states back
through the pieces from the last to the first; from a forward sweep only the states between pieces are kept. Both are
the derivatives of the whole sequence, not of pieces that take their initial states for constants.
"""

from collections.abc import Mapping, Sequence

from pushforward._backward import Cotangents, Pulled, Weights, pull
from pushforward._forward import Call, Walk, boundaries, push
from pushforward._layout import Layout
from pushforward._pieces import ChunkedVJP, Pieces
from pushforward._progress import Progress, bars
from pushforward._sources import Sources, by_name
from pushforward.errors import InvalidRequest
from pushforward.wire._arrays import Array


class Chunked:
    """A long sequence and the model that it goes through; made by `Client.chunked`, which tells the arguments.

    Attributes:
        pieces: How many pieces there are; None if only the end of an iterator will tell.
        name: The model's name.
        version: The version that all requests go to.
    """

    def __init__(self, call: Call, layout: Layout, inputs: Sources, *, size: int | None, pieces: int | None) -> None:
        self._layout = layout
        self._walk = Walk(call, layout, inputs, size, pieces)
        self.pieces, self.name, self.version = self._walk.pieces, layout.name, layout.version

    def evaluate(self, *, outputs: Sequence[str] | None = None, timeout_s: float | None = None) -> Pieces:
        """Compute the model's outputs, piece by piece.

        Args:
            outputs: Output-side names (`y`, `state.*`, `hidden.*`); the model's own outputs if None.
            timeout_s: Give up a request after this many seconds.

        Returns:
            An iterator of `Piece`, which computes each when it is asked for; `collect()` gives all of it.

        Raises:
            InvalidRequest: if a name is unknown.
        """
        self._check(outputs)
        return Pieces(self._layout, push(self._walk, {}, outputs, timeout_s=timeout_s), self.pieces)

    def jvp(
        self,
        tangents: Sources,
        *,
        outputs: Sequence[str] | None = None,
        strategy: str = "auto",
        timeout_s: float | None = None,
    ) -> Pieces:
        """Compute outputs and their tangents, piece by piece: exactly those of the whole sequence.

        Args:
            tangents: A direction for any subset of input-side names; missing means zero. Of a sequence (`x`,
                `hidden.*`) an array as long as the inputs, an iterator or a function, as for the inputs; of an initial
                state `(batch, units)`; of a parameter its shape. An extra leading axis holds several directions.
            outputs: Output-side names to compute; the model's own outputs if None.
            strategy: `auto`, `scan`, `unrolled` or `reverse`; all give the same numbers.
            timeout_s: Give up a request after this many seconds.

        Returns:
            An iterator of `Piece`, which computes each when it is asked for; `collect()` gives all of it.

        Raises:
            InvalidRequest: if there is no tangent, or one of unknown name or, as soon as that can be known, of another
                length than the inputs.
        """
        self._check(outputs)
        given = by_name(tangents, self._layout.sequence.name)
        if not given:
            raise InvalidRequest(f"expected at least one, such as {self._layout.sequence.name}", path="tangents")
        for name in given:
            self._layout.source(name, f"tangents.{name}")
        return Pieces(
            self._layout, push(self._walk, given, outputs, strategy=strategy, timeout_s=timeout_s), self.pieces
        )

    def vjp(
        self,
        cotangents: Cotangents,
        *,
        wrt: Sequence[str] | None = None,
        out: Mapping[str, Array] | None = None,
        strategy: str = "auto",
        progress: Progress = False,
        timeout_s: float | None = None,
    ) -> ChunkedVJP:
        """Pull cotangents back through the whole sequence, in two sweeps of one request a piece.

        Args:
            cotangents: A weight for any subset of output-side names. Of a sequence (`y`, `hidden.*`) an array as long
                as the inputs, or a function of the piece's number; of a last step's output or a final state an array
                without time. An extra leading axis holds several. Or one function of a `Piece` with the model's
                outputs, which returns their cotangents by name, such as the gradient of a loss,
                `lambda piece: {"y": 2 * (piece.outputs["y"] - target[:, piece.steps])}`; of outputs without time only
                the last piece's counts. This takes one more request a piece.
            wrt: Input-side names; every differentiable input if None. Parameters' cotangents are summed over pieces.
            out: Where cotangents of sequences go, by name: arrays of their very shape and dtype, such as memory maps;
                new memory if None. After an error their contents are undefined.
            strategy: `auto`, `scan` or `unrolled`; all give the same numbers.
            progress: Show a bar of pieces; True needs `pip install "pushforward[progress]"`. Or what makes bars as
                `tqdm.tqdm` does.
            timeout_s: Give up a request after this many seconds.

        Raises:
            InvalidRequest: if a name is unknown, a length is not that of the inputs, or a sequence is an iterator,
                which can't be read twice or backwards.
            ValueError: if an array of `out` does not fit.
        """
        if self._walk.sequence.read_once:
            raise InvalidRequest(
                "an iterator is read once, and there are two sweeps; give an array, a memory map or a function of the "
                "piece's number",
                path=f"inputs.{self._layout.sequence.name}",
            )
        weights, pulled = Weights(self._walk, cotangents), Pulled(self._layout, wrt, out or {})
        total = None if self.pieces is None else 2 * self.pieces
        with bars(progress)(total=total, desc="vjp", unit="piece") as bar:

            def tick() -> None:
                if bar is not None:
                    bar.update(1)

            marks = boundaries(self._walk, tick, timeout_s=timeout_s)
            count, steps = len(marks), marks[-1][0].stop
            weights.check_end(count, steps)
            pulled.steps = steps
            pull(self._walk, weights, pulled, marks, tick, strategy=strategy, timeout_s=timeout_s)
        return ChunkedVJP(pulled.cotangents, steps, count, self._layout.name, self._layout.version)

    def _check(self, outputs: Sequence[str] | None) -> None:
        for i, name in enumerate(outputs or ()):
            self._layout.target(name, f"outputs[{i}]")
