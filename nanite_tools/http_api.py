"""A small client for a llama-server that we started: plain HTTP, no proxy, one connection a request."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nanite_tools.errors import DegradedError, MissingError

#: What a failed exchange raises inside http.client and json.
_BROKEN = (OSError, http.client.HTTPException, ValueError)


@dataclass(frozen=True)
class Api:
    """Where the server answers. `prefix` is its `--api-prefix`, without the trailing slash."""

    host: str
    port: int
    prefix: str = ""
    api_key: str = ""

    @property
    def url(self) -> str:
        """The address for a person: `http://127.0.0.1:8080`."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}{self.prefix}"

    def request(self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float) -> tuple[int, bytes]:
        """One exchange: the status and the whole body. `timeout_s` bounds each wait for bytes, not the whole.

        Raises OSError or http.client.HTTPException when there is no complete answer.
        """
        headers = {"Accept": "application/json", "Connection": "close"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        data = None if body is None else json.dumps(body).encode()
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        try:
            connection.request(method, self.prefix + path, body=data, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def health(self, timeout_s: float = 2.0) -> int:
        """The status of GET /health: 200 ready, 503 loading; 0 when nobody answers."""
        try:
            return self.request("GET", "/health", None, timeout_s)[0]
        except _BROKEN:
            return 0

    def nanite(self, timeout_s: float = 10.0) -> dict[str, Any] | None:
        """The document of GET /nanite; None when the server has no such path (404: it is not our build).

        Raises MissingError when the server does not answer, DegradedError when the answer is no document.
        """
        status, document = self._json("GET", "/nanite", None, timeout_s)
        if status == 404:
            return None
        if status != 200 or document.get("schema") != 1:
            raise DegradedError(f"GET /nanite answered {status} with no document of schema 1", "is the build current?")
        return document

    def completion(self, prompt: str, n_predict: int, timeout_s: float = 600.0) -> dict[str, Any]:
        """POST /completion: greedy (temperature 0), without the prompt cache. Raises MissingError when it fails."""
        body = {
            "prompt": prompt,
            "n_predict": n_predict,
            "temperature": 0,
            "cache_prompt": False,
            "stream": False,
        }
        status, document = self._json("POST", "/completion", body, timeout_s)
        if status != 200 or not isinstance(document.get("content"), str):
            error = document.get("error")
            text = error.get("message", "") if isinstance(error, dict) else ""
            raise MissingError(f"POST /completion answered {status}: {text or 'no content'}", "see the server's log")
        return document

    def _json(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float
    ) -> tuple[int, dict[str, Any]]:
        started = time.monotonic()
        try:
            status, raw = self.request(method, path, body, timeout_s)
        except TimeoutError as error:
            waited = time.monotonic() - started
            raise MissingError(f"{method} {path}: no answer in {waited:.0f} s", "see the server's log") from error
        except _BROKEN as error:
            raise MissingError(f"{method} {path}: {error or 'the server closed'}", "see the server's log") from error
        try:
            document = json.loads(raw)
        except ValueError:
            document = {}
        return status, document if isinstance(document, dict) else {}
