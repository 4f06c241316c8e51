"""The part that a mixture of experts has in the place of an MLP."""

from headway.checkpoint.shape import ExpertsShape
from headway.model import parts
from headway.model.builder import Builder
from headway.model.ops import Activation, Add, Experts, Mul, Route


def mlp_or_experts(builder: Builder, layer: int, source: str) -> str:
    """What the layer adds to the hidden state: an MLP's result, or that of its experts, the shared one included."""
    experts, at = builder.shape.experts, f"layers.{layer}.mlp"
    if experts is None or layer not in experts.layers:
        return parts.gated_mlp(builder, layer, source)
    chosen = _experts(builder, experts, at, source)
    if not experts.shared_width:
        return chosen
    return builder.add(Add(out=f"{at}.all", left=chosen, right=_shared(builder, experts, at, source)))


def _experts(builder: Builder, experts: ExpertsShape, at: str, source: str) -> str:
    hidden_size = builder.shape.hidden_size
    op = Experts(
        out=f"{at}.experts",
        input=source,
        routing=_route(builder, experts, at, source),
        name=f"{at}.experts",
        num_experts=experts.num_experts,
        top_k=experts.top_k,
        kind=builder.shape.activation,
    )
    for gate, up, down in zip(op.gates, op.ups, op.downs, strict=True):
        builder.weight(gate, experts.width, hidden_size)
        builder.weight(up, experts.width, hidden_size)
        builder.weight(down, hidden_size, experts.width)
    return builder.add(op)


def _route(builder: Builder, experts: ExpertsShape, at: str, source: str) -> str:
    in_width = builder.shape.hidden_size
    scores = parts.linear(builder, f"{at}.router", source, width=experts.num_experts, in_width=in_width, has_bias=False)
    bias = builder.weight(f"{at}.choice.bias", experts.num_experts) if experts.has_choice_bias else None
    return builder.add(
        Route(
            out=f"{at}.routing",
            input=scores,
            top_k=experts.top_k,
            scoring=experts.scoring,
            bias=bias,
            num_groups=experts.num_groups,
            top_groups=experts.top_groups,
            group_score=experts.group_score,
            normalise=experts.normalise,
            scale=experts.scale,
        )
    )


def _shared(builder: Builder, experts: ExpertsShape, at: str, source: str) -> str:
    hidden_size, width = builder.shape.hidden_size, experts.shared_width
    gate, up = (
        parts.linear(builder, f"{at}.shared.{part}", source, width=width, in_width=hidden_size, has_bias=False)
        for part in ("gate", "up")
    )
    active = builder.add(Activation(out=f"{at}.shared.active", input=gate, kind=builder.shape.activation))
    product = builder.add(Mul(out=f"{at}.shared.product", left=active, right=up))
    down = parts.linear(builder, f"{at}.shared.down", product, width=hidden_size, in_width=width, has_bias=False)
    if not experts.has_shared_gate:
        return down
    score = parts.linear(builder, f"{at}.shared_gate", source, width=1, in_width=hidden_size, has_bias=False)
    share = builder.add(Activation(out=f"{at}.shared_share", input=score, kind="sigmoid"))
    return builder.add(Mul(out=f"{at}.shared", left=down, right=share))
