"""Which route a request is for, wherever the app is mounted, and whether it is one for admins."""

from starlette.types import Scope


def route_path(scope: Scope) -> str:
    """The path below the app's own mount point."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if not root or not path.startswith(root):
        return path
    below = path[len(root) :]
    # As the framework's router has it: /adm is no mount point of /admin, and who guards a path must see what is routed.
    return below if not below or below.startswith("/") else path


def is_admin(path: str) -> bool:
    """Whether a route_path() is of those that need an admin key, where the server has any."""
    return path == "/admin" or path.startswith(("/admin/", "/v2/repository/models/"))
