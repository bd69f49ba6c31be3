"""The recorder of spans, over OpenTelemetry; imported only where the extra `tracing` is installed."""

import json
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from runtime.tracing import Attribute

_HEADER = TraceContextTextMapPropagator()


class FileExporter(SpanExporter):
    """Appends each span to a file as one JSON line; several processes may share the file."""

    def __init__(self, path: Path, process: str) -> None:
        self._process = process
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write whole lines, so that those of other processes do not mix with them."""
        os.write(self._file, "".join(json.dumps(self._line(span)) + "\n" for span in spans).encode())
        return SpanExportResult.SUCCESS

    def _line(self, span: ReadableSpan) -> dict[str, object]:
        own = span.get_span_context()
        return {
            "name": span.name,
            "process": self._process,
            "trace": f"{own.trace_id:032x}" if own else None,
            "span": f"{own.span_id:016x}" if own else None,
            "parent": f"{span.parent.span_id:016x}" if span.parent else None,
            "begun_ns": span.start_time,
            "ended_ns": span.end_time,
            "attributes": dict(span.attributes or {}),
        }

    def shutdown(self) -> None:
        """Close the file."""
        os.close(self._file)


class _Span:
    def __init__(self, span: trace.Span) -> None:
        self._span = span

    @property
    def traceparent(self) -> str:
        own = self._span.get_span_context()
        return f"00-{own.trace_id:032x}-{own.span_id:016x}-{int(own.trace_flags):02x}"

    def tell(self, name: str | None = None, **attributes: Attribute) -> None:
        if name is not None:
            self._span.update_name(name)
        self._span.set_attributes(attributes)


class OpenTelemetry:
    """Records to a file, or to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names."""

    def __init__(self, process: str, traces: str) -> None:
        resource = Resource.create({"service.name": f"oncommit-{process}"})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        if traces == "otlp":
            self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        else:
            path = Path(traces.removeprefix("file:"))
            self._provider.add_span_processor(SimpleSpanProcessor(FileExporter(path, process)))
        self._tracer = self._provider.get_tracer("oncommit")

    @contextmanager
    def span(self, name: str, traceparent: str | None, attributes: dict[str, Attribute]) -> Generator[_Span]:
        """Open a span for the block; an exception is recorded by its type only."""
        with self._tracer.start_as_current_span(
            name,
            _context(traceparent),
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield _Span(span)
            except BaseException as error:
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(trace.StatusCode.ERROR)
                raise

    def past(self, name: str, traceparent: str, begun_ns: int, attributes: dict[str, Attribute]) -> None:
        """Record a span that ends now."""
        span = self._tracer.start_span(
            name, _context(traceparent), attributes=attributes, start_time=begun_ns
        )
        span.end()

    def here(self) -> str:
        """Return the header that names the open span."""
        return _Span(trace.get_current_span()).traceparent

    def shutdown(self) -> None:
        """Send what was not sent yet."""
        self._provider.shutdown()


def _context(traceparent: str | None) -> Context | None:
    return None if traceparent is None else _HEADER.extract({"traceparent": traceparent}, Context())
