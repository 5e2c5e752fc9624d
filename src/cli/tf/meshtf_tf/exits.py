"""A program ends while its threads are still in a session, those of queue runners say: TensorFlow before 1.4 does not survive that.

A call that returns while Python shuts down, to a thread that Python no longer runs, crashes in what TensorFlow does after the call. So
sessions on servers that have calls under way are closed before that, which ends the calls; their threads go no further.
"""

import atexit
import functools
import threading

# A server that takes longer to end the calls of a closed session is not waited for.
LIMIT_S = 10


def install():
    """Watches the calls of all sessions from now on."""
    from tensorflow.python.client import session

    calls = Calls()
    session.BaseSession._do_call = calls.watched(session.BaseSession._do_call)
    atexit.register(calls.end)


class Calls:
    """The calls that are under way, and how they end with the program."""

    def __init__(self):
        # The session of each.
        self.sessions = []
        self.is_ending = False
        self.changed = threading.Condition()

    def watched(self, call):
        """The method of a session that makes a call."""

        @functools.wraps(call)
        def _do_call(session, *arguments, **named):
            with self.changed:
                ends = self.is_ending
                if not ends:
                    self.sessions.append(session)
            if ends:
                self.hold()
                return call(session, *arguments, **named)
            try:
                return call(session, *arguments, **named)
            finally:
                with self.changed:
                    self.sessions.remove(session)
                    self.changed.notify_all()
                self.hold()

        return _do_call

    def hold(self):
        """Does not return to a thread that Python does not wait for, once the program has ended."""
        if self.is_ending and threading.current_thread().daemon:
            threading.Event().wait()

    def end(self):
        """Called when the program has ended, and only threads are left that Python does not wait for."""
        with self.changed:
            self.is_ending = True
            sessions = [session for session in set(self.sessions) if is_on_server(session)]
        for session in sessions:
            try:
                session.close()
            except Exception:
                # Its server is gone, and with it the calls.
                pass
        with self.changed:
            self.changed.wait_for(lambda: not any(map(is_on_server, self.sessions)), LIMIT_S)


def is_on_server(session):
    """Whether a session's calls go to a server."""
    target = getattr(session, "sess_str", None) or ""
    return (target.decode() if isinstance(target, bytes) else target).startswith("grpc://")
