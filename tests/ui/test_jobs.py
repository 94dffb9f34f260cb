"""Work beside the page: progress, first results, stopping, errors."""

import threading

from formats import InputError
from ui.jobs import Job


def test_a_job_tells_progress_and_keeps_its_result():
    def work(tell):
        tell(0.5, "half")
        tell.publish("first")
        tell(2.0)
        return "all"

    job = Job("a", work).start()
    assert job.wait(5)
    assert (job.value, job.share, job.text, job.error) == ("all", 1.0, "half", "")
    assert not job.running


def test_a_stopped_job_ends_at_its_next_word_and_keeps_no_result():
    begun, go = threading.Event(), threading.Event()
    reached = []

    def work(tell):
        begun.set()
        go.wait(5)
        tell(0.5)
        reached.append("too far")
        return "result"

    job = Job("a", work).start()
    begun.wait(5)
    job.stop()
    assert not job.running
    go.set()
    assert job.wait(5)
    assert job.value is None
    assert reached == []


def test_a_job_ends_when_nobody_looks_any_more():
    looks = [True]

    def work(tell):
        looks[0] = False
        tell(0.1)
        return "result"

    job = Job("a", work, lambda: looks[0]).start()
    assert job.wait(5)
    assert job.value is None
    assert job.error == ""


def test_bad_input_is_told_as_on_the_command_line():
    def work(_tell):
        raise InputError("tp = 3 does not divide 32 heads", "[hardware] tp")

    job = Job("a", work).start()
    assert job.wait(5)
    assert job.error == "[hardware] tp: tp = 3 does not divide 32 heads"


def test_a_defect_does_not_kill_the_page():
    def work(_tell):
        raise ZeroDivisionError("oh")

    job = Job("a", work).start()
    assert job.wait(5)
    assert job.error == "ZeroDivisionError: oh"
