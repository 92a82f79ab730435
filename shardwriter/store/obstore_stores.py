"""obstore's own objects: where they read and write, with which options, retries and credentials."""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import Any, Final

from .credentials import Provider
from .options import Options

S3: Final = ("s3", "s3a")
AZURE: Final = ("az", "abfs", "abfss")
WEB: Final = ("http", "https")


def make_store(
    scheme: str, authority: str, prefix: str, options: Options, provider: Provider | None, tries: int
) -> Any:
    """An obstore store that does each request `tries` times; for S3, with what `credentials.resolve` has found.

    Raises obstore's errors.
    """
    from obstore import store as stores

    common: dict[str, Any] = {
        "retry_config": {"max_retries": tries - 1, "retry_timeout": timedelta(minutes=5)},
        "client_options": {
            "timeout": _seconds(options.timeout),
            "read_timeout": _seconds(options.read_timeout),
            "connect_timeout": _seconds(options.connect_timeout),
        },
    }
    if options.allow_http or scheme in WEB:  # for HTTP, the URL itself says so
        common["client_options"]["allow_http"] = True
    if scheme in S3:
        config = _given(
            endpoint=_endpoint(options, authority),
            region=options.region,
            skip_signature=options.anon or None,
            request_payer=options.requester_pays or None,
        )
        config["virtual_hosted_style_request"] = not options.path_style
        if provider is not None:
            common["credential_provider"] = provider
        return stores.S3Store(authority, config=config, **common)
    if scheme == "gs":
        config = _given(base_url=options.endpoint_url, skip_signature=options.anon or None, bearer_token=options.token)
        return stores.GCSStore(authority, config=config, **common)
    if scheme in AZURE:
        config = _given(
            endpoint=options.endpoint_url, account_name=options.key, account_key=options.secret, sas_key=options.token,
            skip_signature=options.anon or None,
        )  # fmt: skip
        return stores.AzureStore.from_url(f"{scheme}://{authority}", config=config, **common)
    common["client_options"]["default_headers"] = login_headers(options)
    return stores.HTTPStore.from_url(web_root(scheme, authority, prefix, options), **common)


def web_root(scheme: str, authority: str, prefix: str, options: Options) -> str:
    """The URL of a folder on a web server, with the query that goes with every request."""
    path = f"/{prefix}" if prefix else ""
    return f"{scheme}://{authority}{path}" + (f"?{options.query}" if options.query else "")


def login_headers(options: Options) -> dict[str, str]:
    """What a web server wants to see of a token, or of user and password."""
    if options.token is not None:
        return {"authorization": f"Bearer {options.token}"}
    if options.key is None:
        return {}
    login = base64.b64encode(f"{options.key}:{options.secret}".encode()).decode()
    return {"authorization": f"Basic {login}"}


def _endpoint(options: Options, bucket: str) -> str | None:
    """The endpoint as obstore wants it, with the bucket the host where requests carry it there."""
    if options.path_style or options.endpoint_url is None:
        return options.endpoint_url
    scheme, _, rest = options.endpoint_url.partition("://")
    return f"{scheme}://{bucket}.{rest}"


def _given(**config: Any) -> Any:
    return {name: value for name, value in config.items() if value is not None}


def _seconds(value: float) -> str:
    return f"{round(value * 1000)}ms"
