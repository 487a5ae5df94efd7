"""The operators of the server as methods: NumPy in, NumPy out."""

from collections.abc import Mapping, Sequence
from urllib.parse import quote

from pushforward._connection import Connection
from pushforward._download import Out, download
from pushforward._progress import Progress
from pushforward._requests import Arrays, request
from pushforward._responses import read_message
from pushforward._results import JVP, VJP, Answer, Evaluation, Jacobian, Plan, Transitions


class Operators:
    """The part of a client that computes."""

    _connection: Connection

    def evaluate(
        self,
        model: str,
        inputs: Arrays,
        *,
        outputs: Sequence[str] | None = None,
        timeout_s: float | None = None,
        **options: object,
    ) -> Evaluation:
        """Compute a model's outputs.

        Args:
            model: `name`, or `name@version`.
            inputs: Input-side arrays by name; states left out start at their defaults.
            outputs: Output-side names (`y`, `state.*`, `hidden.*`) to compute; the model's own outputs if None.
            timeout_s: Give up after this many seconds.
            **options: Further request fields, as the HTTP contract names them.
        """
        answer = self.call("evaluate", model, {"inputs": inputs}, outputs=outputs, timeout_s=timeout_s, **options)
        return Evaluation(answer.named("outputs"), answer.info, answer.model, answer.version)

    def jvp(
        self,
        model: str,
        inputs: Arrays,
        tangents: Arrays,
        *,
        outputs: Sequence[str] | None = None,
        strategy: str = "auto",
        timeout_s: float | None = None,
        **options: object,
    ) -> JVP:
        """Compute a model's outputs and their tangents (pushforward): Jacobian times `tangents`.

        Args:
            model: `name`, or `name@version`.
            inputs: Input-side arrays by name; states left out start at their defaults.
            tangents: A direction for any subset of input-side names, parameters included; missing means zero. An extra
                leading axis holds several directions.
            outputs: Output-side names to compute; the model's own outputs if None.
            strategy: `auto`, `scan`, `unrolled` or `reverse`; all give the same numbers.
            timeout_s: Give up after this many seconds.
            **options: Further request fields, such as `check=True` or, if rows are padded, `lengths=[5, 3, 8]`.
        """
        arrays = {"inputs": inputs, "tangents": tangents}
        answer = self.call("jvp", model, arrays, outputs=outputs, strategy=strategy, timeout_s=timeout_s, **options)
        return JVP(answer.named("outputs"), answer.named("tangents"), answer.info, answer.model, answer.version)

    def vjp(
        self,
        model: str,
        inputs: Arrays,
        cotangents: Arrays,
        *,
        wrt: Sequence[str] | None = None,
        strategy: str = "auto",
        timeout_s: float | None = None,
        **options: object,
    ) -> VJP:
        """Compute a model's outputs and the cotangents of its inputs (pullback): `cotangents` times Jacobian.

        Args:
            model: `name`, or `name@version`.
            inputs: Input-side arrays by name; states left out start at their defaults.
            cotangents: A weight for any subset of output-side names; missing means zero. An extra leading axis holds
                several.
            wrt: Input-side names (`x`, `state.*`, `param.*`, `hidden.*`) whose cotangents to compute; the server's
                choice if None.
            strategy: `auto`, `scan` or `unrolled`; all give the same numbers.
            timeout_s: Give up after this many seconds.
            **options: Further request fields, such as `check=True` or, if rows are padded, `lengths=[5, 3, 8]`.
        """
        arrays = {"inputs": inputs, "cotangents": cotangents}
        answer = self.call("vjp", model, arrays, wrt=wrt, strategy=strategy, timeout_s=timeout_s, **options)
        return VJP(answer.named("outputs"), answer.named("cotangents"), answer.info, answer.model, answer.version)

    def jacobian(
        self,
        model: str,
        inputs: Arrays,
        *,
        of: str,
        wrt: str,
        mode: str = "auto",
        out: Out = None,
        progress: Progress = False,
        timeout_s: float | None = None,
        **options: object,
    ) -> Jacobian:
        """Compute one block of the Jacobian of every sample, of any size: it is written to `out` as it comes.

        Args:
            model: `name`, or `name@version`.
            inputs: Input-side arrays by name; states left out start at their defaults.
            of: What to differentiate: an output-side name with NumPy basic indexing over its axes without the batch
                axis, such as `y[-1, :]`.
            wrt: With respect to what: an input-side name, indexed likewise, such as `x[10:20, 0]`.
            mode: `auto`, `forward` or `reverse`; all give the same numbers.
            out: Where the array goes. None: new memory. A path: a `.npy` file of exactly this name, which is there only
                once it is whole; the answer's `jacobian` is then a read-only memory map of it. An array, or a writable
                memory map: this one, C-contiguous and of the very shape and dtype (`plan` tells the shape); after an
                error in the transfer, its contents are undefined.
            progress: Show a bar; True needs `pip install "pushforward[progress]"`. Or what makes bars as `tqdm.tqdm`
                does.
            timeout_s: Let the server give up after this many seconds.
            **options: Further request fields, such as `check=True`, which adds `info["check"]`.

        Raises:
            ConnectionFailed: if the answer does not come whole.
            ValueError: if the array `out` does not fit; it is untouched.
            OSError: if the file `out` can't be written.
            ImportError: if `progress` is wanted without tqdm.
        """
        fields = {"model": model, "of": of, "wrt": wrt, "mode": mode, "timeout_s": timeout_s, **options}
        message = request({"inputs": inputs}, fields)
        whole = {"Accept-Encoding": "identity"}  # numbers hardly shrink, and the length would be lost
        answer = self._connection.stream("POST", "jacobian", message, timeout_s=timeout_s, headers=whole)
        return Jacobian.of(*download("jacobian", answer, out, progress=progress))

    def plan(
        self,
        model: str,
        inputs: Arrays,
        *,
        of: str,
        wrt: str,
        mode: str = "auto",
        timeout_s: float | None = None,
        **options: object,
    ) -> Plan:
        """Tell the shape, size, mode and estimated time of a Jacobian without computing it.

        The arguments are those of `jacobian`, options such as `check=True` included.
        """
        fields = {"of": of, "wrt": wrt, "mode": mode, **options, "plan": True}
        return Plan.of(self.call("jacobian", model, {"inputs": inputs}, timeout_s=timeout_s, **fields))

    def transitions(
        self,
        model: str,
        inputs: Arrays,
        *,
        parts: Sequence[str] | None = None,
        timeout_s: float | None = None,
        **options: object,
    ) -> Transitions:
        """Linearise a model that works step by step at every step of a trajectory.

        Args:
            model: `name`, or `name@version`.
            inputs: Input-side arrays by name; states left out start at their defaults.
            parts: Which of `A`, `B`, `C` and `D` to compute; the server's choice if None.
            timeout_s: Give up after this many seconds.
            **options: Further request fields, such as `check=True`, which adds `info["check"]`.
        """
        asked = None if parts is None else list(parts)
        answer = self.call("transitions", model, {"inputs": inputs}, parts=asked, timeout_s=timeout_s, **options)
        return Transitions.of(answer)

    def call(
        self,
        operator: str,
        model: str,
        arrays: Mapping[str, Arrays],
        *,
        timeout_s: float | None = None,
        **options: object,
    ) -> Answer:
        """Call any operator of the server, including one this version of the client has no method for.

        Args:
            operator: The operator's name, which is its route.
            model: `name`, or `name@version`.
            arrays: Array fields of the request, such as `{"inputs": {"x": x}}`.
            timeout_s: Give up after this many seconds.
            **options: The other fields of the request; one that is None is left out.
        """
        message = request(arrays, {"model": model, "timeout_s": timeout_s, **options})
        return Answer.of(read_message(self._connection.fetch("POST", quote(operator), message, timeout_s=timeout_s)))
