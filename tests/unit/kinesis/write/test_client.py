"""KinesisClient against a real HTTP server on this machine."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import botocore.serialize
import botocore.session
import pytest

from penstock.kinesis.aws.outcome import (
    Accepted,
    Answered,
    Entry,
    Failed,
    Placed,
    Refused,
    Result,
    Taken,
    throttling_shards,
)
from penstock.kinesis.write.client import KinesisClient
from penstock.kinesis.write.event import ChangeEvent
from penstock.settings.errors import SettingsError
from tests.kinesis_answers import SHARD, accepted
from tests.servers.kinesis_rules import check_signature
from tests.servers.loop_thread import bind

STREAM = "orders.v1"
REGION = "eu-west-1"
SECRET = "a-secret"
THROTTLED = "ProvisionedThroughputExceededException"
READ_TIMEOUT_S = 0.2


class Received(NamedTuple):
    port: int
    """The client's: one a connection."""
    path: str
    headers: Mapping[str, str]
    """With names in lower case."""
    body: bytes


class Answer(NamedTuple):
    status: int
    body: bytes
    headers: Mapping[str, str] = {}
    content_length: int | None = None
    """None: the true one."""


class Server(ThreadingHTTPServer):
    """Gives every request the same answer and remembers the requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer: Answer | Callable[[], None] = Answer(500, b"")
        self.received: list[Received] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.received.append(Received(self.client_address[1], self.path, headers, body))
        answer = self.server.answer
        if not isinstance(answer, Answer):
            answer()
            self.close_connection = True
            return
        self.send_response(answer.status)
        length = len(answer.body) if answer.content_length is None else answer.content_length
        for name, value in {**answer.headers, "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.body)
        self.close_connection = length != len(answer.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Silence: the default writes to stderr."""


@pytest.fixture(scope="module", autouse=True)
def environment() -> Iterator[pytest.MonkeyPatch]:
    """Credentials of our own, and nothing of the machine's."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_CA_BUNDLE", "HTTP_PROXY", "http_proxy"):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_CONFIG_FILE", "/nonexistent")
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_ACCESS_KEY_ID", "an-id")
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        yield patch


@pytest.fixture(scope="module")
def running_server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def server(running_server: Server) -> Server:
    running_server.received.clear()
    return running_server


def connect(url: str) -> KinesisClient:
    return KinesisClient(
        stream=STREAM,
        region=REGION,
        endpoint_url=url,
        connect_timeout_s=1.0,
        read_timeout_s=READ_TIMEOUT_S,
    )


@pytest.fixture(scope="module")
def client(running_server: Server) -> Iterator[KinesisClient]:
    client = connect(running_server.url)
    yield client
    client.close()


def events(*records: tuple[bytes, str]) -> list[ChangeEvent]:
    return [ChangeEvent(1, data, key, len(data) + len(key.encode()), 0, 0, 0.0) for data, key in records]


def answer_for(*codes: str | None) -> Answer:
    """What PutRecords answers: an error or a sequence number for each record."""
    records = [
        {"SequenceNumber": str(10**20 + place), "ShardId": SHARD}
        if code is None
        else {"ErrorCode": code, "ErrorMessage": "Rate exceeded for shard shardId-000000000000"}
        for place, code in enumerate(codes)
    ]
    failed = sum(code is not None for code in codes)
    return Answer(200, json.dumps({"FailedRecordCount": failed, "Records": records}).encode())


def error_answer(status: int, type_: str, message: str = "why") -> Answer:
    return Answer(status, json.dumps({"__type": type_, "message": message}).encode())


def put(
    client: KinesisClient, server: Server, answer: Answer | Callable[[], None], records: int = 1
) -> Result:
    server.answer = answer
    return client.put_records(events(*[(b"data", f"key{place}") for place in range(records)]))


def as_botocore_sends_it(records: Sequence[tuple[bytes, str]]) -> dict[str, Any]:
    model = botocore.session.get_session().get_service_model("kinesis")
    request: dict[str, Any] = botocore.serialize.create_serializer("json").serialize_to_request(
        {"StreamName": STREAM, "Records": [{"Data": data, "PartitionKey": key} for data, key in records]},
        model.operation_model("PutRecords"),
    )
    return request


@pytest.mark.parametrize(
    "records",
    [
        pytest.param([(b'{"action":"I"}', "public.t/1")], id="one"),
        pytest.param([(b"a", "k1"), (b"bb", "k2"), (b"ccc", "k1")], id="several"),
        pytest.param([(b"", "k")], id="no data"),
        pytest.param([(bytes(range(256)) * 40, "k")], id="every byte"),
        pytest.param([(b"x", 'a"b\\c/d\n\t\x01')], id="a key to be escaped"),
        pytest.param([(b"x", "Zoë 日 😀 \u2028")], id="a key that is not ASCII"),
    ],
)
def test_the_request_is_the_one_that_botocore_would_send(
    client: KinesisClient, server: Server, records: Sequence[tuple[bytes, str]]
) -> None:
    server.answer = answer_for(*[None] * len(records))

    assert client.put_records(events(*records)) == accepted(records)

    (received,) = server.received
    expected = as_botocore_sends_it(records)
    assert json.loads(received.body) == json.loads(expected["body"])
    assert received.path == expected["url_path"]
    for name in ("X-Amz-Target", "Content-Type"):
        assert received.headers[name.lower()] == expected["headers"][name]


@pytest.mark.parametrize("after", [None, "495"])
def test_a_manifest_is_put_as_botocore_would_put_it(
    client: KinesisClient, server: Server, after: str | None
) -> None:
    server.answer = Answer(200, b'{"SequenceNumber":"496","ShardId":"shardId-000000000000"}')

    assert client.put_mark(b'{"action":"R"}', "penstock/slot", after) == Placed("496", "shardId-000000000000")

    ordering = {} if after is None else {"SequenceNumberForOrdering": after}
    model = botocore.session.get_session().get_service_model("kinesis")
    expected = botocore.serialize.create_serializer("json").serialize_to_request(
        {
            "StreamName": STREAM,
            "Data": b'{"action":"R"}',
            "PartitionKey": "penstock/slot",
            **ordering,
        },
        model.operation_model("PutRecord"),
    )
    (received,) = server.received
    assert json.loads(received.body) == json.loads(expected["body"])
    assert received.headers["x-amz-target"] == expected["headers"]["X-Amz-Target"]


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        pytest.param(error_answer(400, THROTTLED), Failed(THROTTLED, "why", stream_fault=False), id="slow"),
        pytest.param(
            error_answer(400, "ValidationException"), Refused("ValidationException", "why"), id="refused"
        ),
        pytest.param(
            Answer(200, b"{}"),
            Failed(
                "UnreadableAnswer", "the answer to PutRecord isn't what Kinesis documents", stream_fault=False
            ),
            id="no number",
        ),
    ],
)
def test_a_manifest_that_is_not_taken(
    client: KinesisClient, server: Server, answer: Answer, result: Failed | Refused
) -> None:
    server.answer = answer
    assert client.put_mark(b"{}", "k", None) == result


def test_records_that_were_taken_in_another_order_are_no_success(
    client: KinesisClient, server: Server
) -> None:
    records = [{"SequenceNumber": number, "ShardId": SHARD} for number in ("10", "9")]
    server.answer = Answer(200, json.dumps({"FailedRecordCount": 0, "Records": records}).encode())

    assert isinstance(client.put_records(events((b"a", "k"), (b"b", "k"))), Answered)
    assert client.put_records(events((b"a", "k"), (b"b", "l"))) == Accepted(
        Taken.of([Entry(shard=SHARD, sequence="10"), Entry(shard=SHARD, sequence="9")])
    )


def test_the_request_is_signed_as_it_arrives(client: KinesisClient, server: Server) -> None:
    put(client, server, answer_for(None))

    (received,) = server.received
    assert check_signature("POST", received.path, received.headers, received.body, SECRET) is None
    assert f"/{REGION}/kinesis/aws4_request" in received.headers["authorization"]


def test_failed_records_are_named_by_their_place(client: KinesisClient, server: Server) -> None:
    codes = (None, THROTTLED, None, "InternalFailure")

    result = put(client, server, answer_for(*codes), records=4)

    assert isinstance(result, Answered)
    assert tuple(result.codes) == codes
    assert throttling_shards(result.entries) == ["shardId-000000000000"]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(answer_for(None), id="too few"),
        pytest.param(answer_for(None, None, None), id="too many"),
        pytest.param(Answer(200, b""), id="empty"),
        pytest.param(Answer(200, b"<html>"), id="another service"),
        pytest.param(Answer(200, b"{}"), id="no records"),
        pytest.param(Answer(200, b'{"Records":[{"ErrorCode":1},{}]}'), id="strange codes"),
    ],
)
def test_an_answer_that_says_nothing_of_the_records_leaves_them_open(
    client: KinesisClient, server: Server, answer: Answer
) -> None:
    result = put(client, server, answer, records=2)

    assert isinstance(result, Failed)
    assert (result.code, result.stream_fault) == ("UnreadableAnswer", False)


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        pytest.param(
            error_answer(400, "ValidationException"), Refused("ValidationException", "why"), id="validation"
        ),
        pytest.param(
            error_answer(400, "com.amazonaws.kinesis.v20131202#InvalidArgumentException"),
            Refused("InvalidArgumentException", "why"),
            id="with a namespace",
        ),
        pytest.param(
            Answer(413, b""), Refused("HTTP413", "HTTP status 413"), id="too large, and no word more"
        ),
        pytest.param(
            error_answer(400, "AccessDeniedException:http://internal.amazon.com/coral/"),
            Failed("AccessDeniedException", "why", stream_fault=True),
            id="with a URL",
        ),
        pytest.param(
            error_answer(400, "ResourceNotFoundException"),
            Failed("ResourceNotFoundException", "why", stream_fault=True),
            id="no such stream",
        ),
        pytest.param(
            error_answer(400, THROTTLED), Failed(THROTTLED, "why", stream_fault=False), id="throttled"
        ),
        pytest.param(
            Answer(400, b'{"__type":"ExpiredTokenException","Message":"Why"}'),
            Failed("ExpiredTokenException", "Why", stream_fault=True),
            id="a message with a capital",
        ),
        pytest.param(
            Answer(400, b"{}", {"x-amzn-ErrorType": "AccessDeniedException"}),
            Failed("AccessDeniedException", "HTTP status 400", stream_fault=True),
            id="named in a header",
        ),
        pytest.param(
            Answer(503, b"<html>busy</html>"),
            Failed("HTTP503", "HTTP status 503", stream_fault=False),
            id="a load balancer",
        ),
        pytest.param(
            Answer(500, b""), Failed("HTTP500", "HTTP status 500", stream_fault=False), id="no word at all"
        ),
        pytest.param(
            Answer(307, b"", {"Location": "http://127.0.0.1:1/"}),
            Failed("HTTP307", "HTTP status 307", stream_fault=False),
            id="a redirect",
        ),
    ],
)
def test_an_error_of_the_whole_request_is_classified_by_its_code(
    client: KinesisClient, server: Server, answer: Answer, result: Result
) -> None:
    assert put(client, server, answer) == result
    assert len(server.received) == 1, "a retry that nobody knows of breaks the order"


def test_a_connection_is_used_again_after_any_whole_answer(client: KinesisClient, server: Server) -> None:
    for answer in (answer_for(None), answer_for(THROTTLED), error_answer(400, THROTTLED), Answer(500, b"")):
        put(client, server, answer)

    assert len({received.port for received in server.received}) == 1


def test_a_record_without_a_sequence_number_is_not_accepted(client: KinesisClient, server: Server) -> None:
    result = put(client, server, Answer(200, b'{"FailedRecordCount":0,"Records":[{}]}'))

    assert isinstance(result, Answered)
    assert result.codes == ["NoSequenceNumber"]


def test_an_error_is_also_found_in_a_header_of_another_case(client: KinesisClient, server: Server) -> None:
    answer = Answer(400, b"", headers={"X-AMZN-ERRORTYPE": "AccessDeniedException"})

    result = put(client, server, answer)

    assert isinstance(result, Failed)
    assert (result.code, result.stream_fault) == ("AccessDeniedException", True)


def test_a_connection_closed_in_the_middle_of_an_answer_leaves_the_records_open(
    client: KinesisClient, server: Server
) -> None:
    whole = answer_for(None)

    result = put(client, server, whole._replace(content_length=len(whole.body) + 1))

    assert isinstance(result, Failed)
    assert not result.stream_fault


def test_a_connection_closed_without_an_answer_leaves_the_records_open(
    client: KinesisClient, server: Server
) -> None:
    result = put(client, server, lambda: None)

    assert isinstance(result, Failed)
    assert not result.stream_fault
    assert len(server.received) == 1
    assert put(client, server, answer_for(None)) == accepted(["one"])


def test_an_answer_that_does_not_come_leaves_the_records_open(client: KinesisClient, server: Server) -> None:
    given_up = threading.Event()

    result = put(client, server, lambda: assert_set(given_up))
    given_up.set()

    assert isinstance(result, Failed)
    assert "time" in f"{result.code} {result.message}".lower()
    assert not result.stream_fault
    assert put(client, server, answer_for(None)) == accepted(["one"])
    first, second = server.received
    assert first.port != second.port, "a late answer would be taken for the next one's"


def assert_set(event: threading.Event) -> None:
    assert event.wait(20), "the client did not give up"


def test_nobody_listens() -> None:
    with bind() as taken:
        client = connect(f"http://127.0.0.1:{taken.getsockname()[1]}")
        result = client.put_records(events((b"x", "k")))
        probed = client.probe()
        client.close()

    for failed in (result, probed):
        assert isinstance(failed, Failed)
        assert failed.message
        assert not failed.stream_fault


def test_a_secret_with_a_line_break_is_said_and_not_shown(
    server: Server, environment: pytest.MonkeyPatch
) -> None:
    with environment.context() as patch:
        patch.setenv("AWS_SESSION_TOKEN", "secret-token\n")
        client = connect(server.url)
        result = client.put_records(events((b"{}", "k")))
        probed = client.probe()
        client.close()

    assert isinstance(result, Failed)
    assert (result.code, result.stream_fault) == ("CredentialsUnusable", True)
    assert "secret-token" not in result.message
    assert "line break" in result.message
    assert probed == result


@pytest.mark.parametrize("variable", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"])
def test_a_secret_of_bytes_that_are_no_text_is_said(
    server: Server, environment: pytest.MonkeyPatch, variable: str
) -> None:
    with environment.context() as patch:
        patch.setenv(variable, os.fsdecode(b"a-secret\xff"))
        client = connect(server.url)
        result = client.put_records(events((b"{}", "k")))
        probed = client.probe()
        client.close()

    assert isinstance(result, Failed)
    assert (result.code, result.stream_fault) == ("CredentialsUnusable", True)
    assert probed == result


@pytest.mark.parametrize(
    ("region", "endpoint", "named"),
    [
        (REGION, f"http://{'a' * 64}.example:1", "AWS_ENDPOINT_URL_KINESIS='http://aaa"),
        ("no region!", "http://127.0.0.1:1", "AWS_REGION='no region!': "),
        ("no region!", None, "AWS_REGION='no region!': "),
    ],
)
def test_a_place_that_can_be_none_is_refused_by_the_name_of_its_variable(
    region: str, endpoint: str | None, named: str
) -> None:
    with pytest.raises(SettingsError) as raised:
        KinesisClient(
            stream=STREAM, region=region, endpoint_url=endpoint, connect_timeout_s=1.0, read_timeout_s=1.0
        )
    (line,) = raised.value.lines
    assert line.startswith(named)


def test_no_credentials(server: Server, environment: pytest.MonkeyPatch) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("AWS_ACCESS_KEY_ID")
        patch.delenv("AWS_SECRET_ACCESS_KEY")
        client = connect(server.url)
        result, probed = client.put_records(events((b"x", "k"))), client.probe()
        client.close()

    assert result == probed == Failed("NoCredentials", "no AWS credentials were found", stream_fault=True)
    assert server.received == []


SUMMARY = Answer(200, b'{"StreamDescriptionSummary":{"StreamStatus":"ACTIVE"}}')


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(SUMMARY, id="there it is"),
        pytest.param(error_answer(400, "AccessDeniedException"), id="we may only put"),
    ],
)
def test_a_stream_that_answers_is_there(client: KinesisClient, server: Server, answer: Answer) -> None:
    server.answer = answer

    assert client.probe() is None
    (received,) = server.received
    assert received.headers["x-amz-target"] == "Kinesis_20131202.DescribeStreamSummary"
    assert json.loads(received.body) == {"StreamName": STREAM}


@pytest.mark.parametrize(
    ("answer", "code", "stream_fault"),
    [
        (error_answer(400, "ResourceNotFoundException"), "ResourceNotFoundException", True),
        (error_answer(400, "UnrecognizedClientException"), "UnrecognizedClientException", True),
        (error_answer(400, "LimitExceededException"), "LimitExceededException", False),
        (error_answer(500, "InternalFailure"), "InternalFailure", False),
    ],
)
def test_a_stream_that_is_not_usable_says_why(
    client: KinesisClient, server: Server, answer: Answer, code: str, stream_fault: bool
) -> None:
    server.answer = answer

    failed = client.probe()

    assert isinstance(failed, Failed)
    assert (failed.code, failed.stream_fault) == (code, stream_fault)
    assert "why" in failed.message
    assert len(server.received) == 1


def test_the_region_has_an_endpoint_of_its_own() -> None:
    client = KinesisClient(
        stream=STREAM,
        region=REGION,
        endpoint_url=None,
        connect_timeout_s=1.0,
        read_timeout_s=1.0,
    )

    assert client.endpoint_url == "https://kinesis.eu-west-1.amazonaws.com/"
    client.close()
