"""Ranges of bytes from S3 and what speaks its language; address and credentials are those of boto3's own settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ggufmap.errors import FileError
from ggufmap.remote.http import missing
from ggufmap.remote.limits import Meter, RemoteLimits
from ggufmap.remote.reader import Part, RetryError, Version, check_range, check_version, persistent, reason, refuse

_HINT = "Check the bucket's name and region, and the credentials (AWS_PROFILE, AWS_ACCESS_KEY_ID, ...)."


class S3Client:
    """A client of boto3, shared by the files of a command and by threads."""

    def __init__(self, limits: RemoteLimits, meter: Meter) -> None:
        """Raises MissingDependencyError without `boto3`, FileError when its settings are broken."""
        try:
            import boto3
            from botocore import UNSIGNED
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError
        except ImportError as e:
            raise missing("boto3") from e
        self.limits = limits
        self.meter = meter
        try:
            session = boto3.Session()
            public = {"signature_version": UNSIGNED} if session.get_credentials() is None else {}
            self.api = session.client(
                "s3",
                config=Config(
                    connect_timeout=limits.connect_s,
                    read_timeout=limits.silence_s,
                    retries={"total_max_attempts": 1},
                    max_pool_connections=16,
                    **public,
                ),
            )
        except BotoCoreError as e:
            raise FileError(f"S3 cannot be used with these settings ({type(e).__name__})", hint=_HINT) from None
        self.endpoint = str(self.api.meta.endpoint_url)


@dataclass(slots=True)
class S3Reader:
    """One object."""

    client: S3Client
    bucket: str
    key: str
    _etag: str = ""

    @property
    def name(self) -> str:
        """See Reader.name."""
        return f"s3://{self.bucket}/{self.key}"

    @property
    def cache_key(self) -> str | None:
        """See Reader.cache_key."""
        return f"{self.client.endpoint} {self.name}"

    def fetch(self, start: int, stop: int, known: Version | None) -> Part:
        """See Reader.fetch."""
        part = persistent(lambda: self._once(start, stop), self.name, self.client.limits)
        check_version(part.version, known, self.name)
        return part

    def _once(self, start: int, stop: int) -> Part:
        from botocore.exceptions import BotoCoreError, ClientError, ConnectionError, HTTPClientError
        from urllib3.exceptions import HTTPError

        pinned = {"IfMatch": self._etag} if self._etag else {}
        try:
            answer = self.client.api.get_object(
                Bucket=self.bucket, Key=self.key, Range=f"bytes={start}-{stop - 1}", **pinned
            )
            data = self._body(answer, start, stop)
        except ClientError as e:
            return self._refused(e)
        except (ConnectionError, HTTPClientError) as e:
            raise RetryError(reason(e.kwargs.get("error", e))) from None
        except (HTTPError, OSError) as e:
            raise RetryError(reason(e)) from None
        except BotoCoreError as e:
            raise FileError(f"{self.name}: cannot be asked for ({type(e).__name__})", hint=_HINT) from None
        self._etag = answer.get("ETag", "")
        return data

    def _body(self, answer: Any, start: int, stop: int) -> Part:
        size = int(answer["ContentLength"])
        count = size
        if "ContentRange" in answer:
            count, size = check_range(answer["ContentRange"], start, stop, self.name)
        elif start or size > stop:
            raise FileError(f"{self.name}: the server ignores ranges", hint="Download the file, then name it.")
        data: bytes = answer["Body"].read(count)
        answer["Body"].close()
        self.client.meter.add(len(data), self.name)
        if len(data) < count:
            raise RetryError(f"the answer ends after {len(data)} of {count} bytes")
        return Part(data, Version(size, answer.get("ETag", "")))

    def _refused(self, error: Any) -> Part:
        """The empty file, of which no range can be had; otherwise raises what the status means."""
        about = error.response.get("ResponseMetadata", {})
        status = int(about.get("HTTPStatusCode", 0))
        if status == 416:
            return Part(b"", Version(0, ""))
        refuse(status, self.name, _HINT, about.get("HTTPHeaders", {}).get("retry-after", ""))
        raise AssertionError("refuse() raises")
