"""A refusal in the shape of the API that was called: Anthropic's below its own path, and where its clients list models;
the Open Inference Protocol's below /v2; OpenAI's everywhere else."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from headway.server.anthropic.errors import told_body, told_status
from headway.server.anthropic.models import VERSION_HEADER
from headway.server.errors import Problem, http_problem, json_response, problem_of, problem_response
from headway.server.headers import find_header
from headway.server.oip.errors import ToldError, is_oip
from headway.server.paths import route_path

ANTHROPIC_PATH = "/v1/messages"
MODELS_PATH = "/v1/models"
"""Of both APIs."""
REQUEST_ID = "headway.request_id"
"""In a scope: the request's id."""


def is_anthropic(scope: Scope) -> bool:
    """Whether the caller speaks Anthropic's API."""
    path = route_path(scope)
    if path.startswith(MODELS_PATH):
        return find_header(scope, VERSION_HEADER) is not None
    return path == ANTHROPIC_PATH or path.startswith(ANTHROPIC_PATH + "/")


def id_headers(scope: Scope) -> list[tuple[bytes, bytes]]:
    """The headers that tell a request's id; Anthropic's clients look for another one."""
    request_id = str(scope[REQUEST_ID]).encode("latin-1")
    headers = [(b"x-request-id", request_id)]
    return [*headers, (b"request-id", request_id)] if is_anthropic(scope) else headers


def refuse(scope: Scope, problem: Problem) -> Response:
    """The whole answer."""
    if is_oip(route_path(scope)):
        return json_response(ToldError(problem.detail.message), status=problem.status, headers=problem.headers)
    if not is_anthropic(scope):
        return problem_response(problem)
    body = told_body(problem, scope.get(REQUEST_ID))
    return json_response(body, status=told_status(problem), headers=problem.headers)


def refuse_error(scope: Scope, error: BaseException) -> Response:
    """refuse() with what the table says of an error."""
    return refuse(scope, problem_of(error))


async def http_exception_response(request: Request, error: Exception) -> Response:
    """The framework's own refusals: no such route, wrong method."""
    return refuse(request.scope, http_problem(error))
