"""What broker/ relies on inside Dramatiq 2.2: read a new version before the pin moves."""

import inspect
import logging
import threading
from importlib.metadata import version
from typing import Any

import dramatiq
import pytest
from dramatiq import Message
from dramatiq.broker import Broker, Consumer, MessageProxy
from dramatiq.errors import Retry
from dramatiq.middleware import Middleware, MiddlewareError, SkipMessage
from dramatiq.worker import ConsumerThread, Worker, WorkerThread

from broker.delivery import Delivery
from broker.settle import Defer


class Recorder(Middleware):
    def __init__(self, name: str, log: list[str], *, fails: Exception | None = None) -> None:
        self.name, self.log, self.fails = name, log, fails

    def before_process_message(self, _broker: Broker, _message: MessageProxy) -> None:
        self.log.append(f"before {self.name}")
        if self.fails:
            raise self.fails

    def after_process_message(self, _broker: Broker, _message: MessageProxy, **outcome: Any) -> None:
        self.log.append(f"after {self.name} {type(outcome.get('exception')).__name__}")
        if self.fails:
            raise self.fails

    def after_skip_message(self, _broker: Broker, _message: MessageProxy) -> None:
        self.log.append(f"skip {self.name}")


class FakeConsumerThread:
    """Stands where a ConsumerThread is looked up by the message's queue name."""

    def __init__(self) -> None:
        self.ended: list[MessageProxy] = []

    def post_process_message(self, message: MessageProxy) -> None:
        self.ended.append(message)


def run_one(*middleware: Middleware, act: Any = lambda: None, fail: bool = False) -> MessageProxy:
    broker = Broker(middleware=list(middleware))
    broker.queues = set()  # type: ignore[assignment]
    broker.declare_queue = lambda _name: None  # type: ignore[method-assign]
    broker.get_declared_queues = set  # type: ignore[method-assign]
    actor = dramatiq.actor(act, broker=broker, actor_name="act")
    worker = Worker(broker, worker_threads=1)
    consumer = FakeConsumerThread()
    thread = WorkerThread(
        broker=broker,
        consumers={"default": consumer},
        work_queue=worker.work_queue,
        worker_timeout=10,  # type: ignore[dict-item]
    )
    proxy = MessageProxy(actor.message())
    if fail:
        proxy.fail()
    worker.work_queue.put(None)  # type: ignore[arg-type]  # so that task_done() has something to be done
    thread.process_message(proxy)
    assert consumer.ended == [proxy], "every message ends at the consumer of its own queue, exactly once"
    return proxy


def test_the_version_is_the_one_that_was_read() -> None:
    assert version("dramatiq").startswith("2.2.")


def test_hooks_after_a_message_run_backwards_and_none_can_stop_the_rest() -> None:
    log: list[str] = []
    run_one(Recorder("first", log), Recorder("second", log, fails=ValueError("x")))
    assert log == ["before first", "before second", "after second NoneType", "after first NoneType"]


def test_a_middleware_error_before_a_message_keeps_the_actor_from_running() -> None:
    log: list[str] = []
    ran: list[int] = []
    run_one(Recorder("m", log, fails=MiddlewareError("x")), act=lambda: ran.append(1))
    assert ran == []
    assert log == ["before m", "after m MiddlewareError"]


def test_a_skip_is_told_apart() -> None:
    log: list[str] = []
    run_one(Recorder("m", log, fails=SkipMessage("x")))
    assert log == ["before m", "skip m"]


def test_a_message_that_was_failed_before_does_not_run() -> None:
    ran: list[int] = []
    run_one(act=lambda: ran.append(1), fail=True)
    assert ran == []


def test_a_base_exception_of_an_actor_is_caught() -> None:
    log: list[str] = []

    def act() -> None:
        raise SystemExit(3)

    run_one(Recorder("m", log), act=act)
    assert log == ["before m", "after m SystemExit"]


@pytest.mark.parametrize(("raised", "lines"), [(Defer(5), 0), (Retry("x"), 0), (ValueError("x"), 1)])
def test_a_retry_is_no_error_in_the_log(
    caplog: pytest.LogCaptureFixture, raised: Exception, lines: int
) -> None:
    def act() -> None:
        raise raised

    with caplog.at_level(logging.INFO):
        run_one(act=act)
    assert len(caplog.records) == lines


def test_a_defer_gets_through_the_hooks_before_a_message() -> None:
    assert issubclass(Defer, MiddlewareError)
    assert issubclass(Defer, Retry)


def test_the_worker_boots_after_its_first_hook_and_reads_the_prefetch_later() -> None:
    source = inspect.getsource(Worker.start)
    assert source.index('emit_before("worker_boot"') < source.index("_WorkerMiddleware(")
    assert "self.queue_prefetch" in inspect.getsource(Worker._add_consumer)
    names = vars(Worker(Broker(middleware=[]), worker_threads=3))
    assert names["worker_threads"] == 3
    assert {"queue_prefetch", "workers", "consumers"} <= names.keys()
    assert issubclass(WorkerThread, threading.Thread)
    assert issubclass(ConsumerThread, threading.Thread)


def test_the_worker_stops_threads_before_it_requeues_and_closes() -> None:
    source = inspect.getsource(Worker.stop)
    steps = [
        'emit_before("worker_shutdown"',
        "join_all(self.workers",
        "requeue_messages(",
        "consumer.close()",
    ]
    assert [source.index(step) for step in steps] == sorted(source.index(step) for step in steps)
    # A thread is joined only after this hook of its own, in which it waits for its finishes.
    ending = inspect.getsource(WorkerThread.run)
    assert ending.index("while self.running") < ending.index('emit_before("worker_thread_shutdown"')


def test_the_consumer_thread_survives_none_and_keeps_only_messages_with_an_eta() -> None:
    source = inspect.getsource(ConsumerThread.run)
    assert "if message is not None" in source
    assert 'if "eta" in message.options' in inspect.getsource(ConsumerThread.handle_message)
    assert "self.consumers[message.queue_name].post_process_message" in inspect.getsource(
        WorkerThread.process_message
    )


def test_the_consumers_interface_is_what_it_was() -> None:
    methods = {name for name in vars(Consumer) if not name.startswith("_")} | {"__next__"}
    assert methods == {"ack", "nack", "requeue", "close", "__next__"}


def test_a_delivery_lends_the_messages_fields() -> None:
    message: Message[Any] = Message("q", "act", (1,), {}, {"a": 1}, "id", 5)
    delivery = Delivery(message, "lane|id", link=None, intent=1)  # type: ignore[arg-type]
    assert (delivery.queue_name, delivery.actor_name, delivery.args) == ("q", "act", (1,))
    assert (delivery.options, delivery.message_id, delivery.failed) == ({"a": 1}, "id", False)
