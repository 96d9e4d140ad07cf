"""The errors of the link proxy's HTTP API, with the texts and statuses that Toxiproxy's clients match on."""

from __future__ import annotations


class ApiError(Exception):
    """Becomes an answer ``{"error": message, "status": status}``."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


class ListenError(ApiError):
    """An address that cannot be listened on."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 500)


def bad_body(why: str) -> ApiError:
    return ApiError(f"bad request body: {why}", 400)


def missing_field(name: str) -> ApiError:
    return ApiError(f"missing required field: {name}", 400)


def proxy_not_found() -> ApiError:
    return ApiError("proxy not found", 404)


def proxy_exists() -> ApiError:
    return ApiError("proxy already exists", 409)


def invalid_stream() -> ApiError:
    return ApiError("stream was invalid, can be either upstream or downstream", 400)


def invalid_toxic_type() -> ApiError:
    return ApiError("invalid toxic type", 400)


def toxic_exists() -> ApiError:
    return ApiError("toxic already exists", 409)


def toxic_not_found() -> ApiError:
    return ApiError("toxic not found", 404)
