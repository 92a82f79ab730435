"""Where S3 credentials come from: arguments first, then the usual places.

This is the one module of the package that reads the environment.  In order: arguments; a profile that was asked for by
argument; the environment variables AWS_ACCESS_KEY_ID and so on; AWS_PROFILE or the files in ~/.aws, through botocore
where it is installed; then what obstore finds itself (web identity, container and instance roles).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from ..errors import MissingExtra, StoreError
from .options import Options

Provider = Callable[[], dict[str, Any]]

EXPIRED: Final = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "ExpiredAuthenticationToken",
        "RequestExpired",
        "TokenRefreshRequired",
        "InvalidToken",
    }
)
"""Codes by which storage refuses credentials that were good once."""
RENEW: Final = "the credentials have expired or are no longer valid: renew them where they come from, or pass new ones"
_REFRESH: Final = timedelta(minutes=5)
"""botocore renews credentials 10 to 15 minutes before they end, so that what it hands out lasts at least this long."""


def resolve(options: Options, environment: Mapping[str, str] = os.environ) -> tuple[Options, Provider | None]:
    """Options with endpoint and region filled in, and a source of credentials; None leaves it to obstore."""
    profile = options.profile or (environment.get("AWS_PROFILE") if "AWS_ACCESS_KEY_ID" not in environment else None)
    provider: Provider | None = None
    if options.key is not None:
        provider = _fixed(options)
    elif not options.anon and (profile or ("AWS_ACCESS_KEY_ID" not in environment and _has_files(environment))):
        options, provider = _from_profile(options, profile)
    endpoint = options.endpoint_url or next(
        (e for n in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT") if (e := environment.get(n))), None
    )
    region = options.region or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    allow_http = options.allow_http or (endpoint or "").startswith("http://")
    return replace(options, endpoint_url=endpoint, region=region, allow_http=allow_http), provider


def _fixed(options: Options) -> Provider:
    credentials = {
        "access_key_id": options.key,
        "secret_access_key": options.secret,
        "token": options.token,
        "expires_at": None,
    }
    return lambda: dict(credentials)


def _has_files(environment: Mapping[str, str]) -> bool:
    names = ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"), ("AWS_CONFIG_FILE", "~/.aws/config")
    return any(Path(environment.get(variable, default)).expanduser().exists() for variable, default in names)


def _from_profile(options: Options, profile: str | None) -> tuple[Options, Provider | None]:
    """Credentials, region and endpoint of a profile, by botocore's rules."""
    try:
        import botocore.session
        from botocore.credentials import RefreshableCredentials
        from botocore.exceptions import BotoCoreError
    except ImportError:
        if profile is None:
            return options, None
        raise MissingExtra(
            f"reading the AWS profile {profile!r} needs botocore", hint="pip install 'shardstream[s3]'"
        ) from None
    try:
        session = botocore.session.Session(profile=profile)
        credentials = session.get_credentials()
        region = options.region or session.get_config_variable("region")
        endpoint = options.endpoint_url or session.get_scoped_config().get("endpoint_url")
    except BotoCoreError as error:
        raise StoreError(f"the AWS profile can't be used: {error}", hint="check ~/.aws and AWS_PROFILE") from error
    options = replace(options, region=region, endpoint_url=endpoint)
    if credentials is None:
        return options, None
    lasting = not isinstance(credentials, RefreshableCredentials)

    def provide() -> dict[str, Any]:
        frozen = credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": None if lasting else datetime.now(UTC) + _REFRESH,
        }

    return options, provide
