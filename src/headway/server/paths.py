"""Which route a request is for, wherever the app is mounted."""

from starlette.types import Scope


def route_path(scope: Scope) -> str:
    """The path below the app's own mount point."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(root) else path
