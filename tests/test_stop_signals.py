import os
import signal

import pytest

from nanite_tools.stop_signals import StopRequestError, held_signals, stop_signals


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_is_an_exception_with_the_shell_s_code(name: str, code: int) -> None:
    number = signal.Signals[name]
    before = signal.getsignal(number)
    with pytest.raises(StopRequestError, match=name) as caught, stop_signals():
        os.kill(os.getpid(), number)
        signal.pause()
    assert caught.value.exit_code == code
    assert isinstance(caught.value, KeyboardInterrupt)
    assert signal.getsignal(number) is before


def test_a_held_signal_comes_at_the_end_of_the_outer_block() -> None:
    reached = []
    with pytest.raises(StopRequestError), stop_signals():
        with held_signals():
            with held_signals():
                os.kill(os.getpid(), signal.SIGTERM)
                reached.append("inner")
            reached.append("outer")
        reached.append("never")
    assert reached == ["inner", "outer"]


def test_no_signal_no_exception() -> None:
    with stop_signals(), held_signals():
        pass
