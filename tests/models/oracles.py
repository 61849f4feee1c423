"""The hybrid decoder once more, one token at a time in float64 NumPy, with nothing shared.

Written from the papers' equations; slow and obvious. Weights come as a nested dict.
"""

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def rms(x, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def delta_rule(q, k, v, g, beta, state):
    """One head, token by token. q, k [token, dk]; v [token, dv]; returns reads and every S."""
    outs, states = [], []
    for t in range(len(q)):
        state = np.exp(g[t]) * state
        state = state + np.outer(k[t], beta[t] * (v[t] - state.T @ k[t]))
        outs.append(state.T @ q[t])
        states.append(state)
    return np.array(outs), np.array(states)


def causal_conv(x, state, weight):
    """x [token, channel], state [kernel - 1, channel] before it, weight [kernel, channel]."""
    joined = np.concatenate([state, x])
    kernel = len(weight)
    return silu(np.array([(joined[t : t + kernel] * weight).sum(0) for t in range(len(x))]))


def rope(x, positions, rotary_dim, theta):
    """Rotates channel pairs (i, i + half) as complex numbers. x [token, head, dim]."""
    half = rotary_dim // 2
    angles = np.asarray(positions)[:, None] * theta ** (-2 * np.arange(half) / rotary_dim)
    turned = (x[..., :half] + 1j * x[..., half:rotary_dim]) * np.exp(1j * angles)[:, None]
    return np.concatenate([turned.real, turned.imag, x[..., rotary_dim:]], axis=-1)


def attention(weights, config, x, start=0):
    """Gated attention over one whole sequence [token, hidden]."""
    heads, dim, eps = config.num_attention_heads, config.head_dim, config.rms_norm_eps
    num_tokens = len(x)
    q_and_gate = (x @ weights["q_proj"]["kernel"]).reshape(num_tokens, heads, 2, dim)
    q, gate = q_and_gate[:, :, 0], q_and_gate[:, :, 1]
    k = (x @ weights["k_proj"]["kernel"]).reshape(num_tokens, -1, dim)
    v = (x @ weights["v_proj"]["kernel"]).reshape(num_tokens, -1, dim)
    q = rms(q, eps) * (1 + weights["q_norm"]["weight"])
    k = rms(k, eps) * (1 + weights["k_norm"]["weight"])
    positions = start + np.arange(num_tokens)
    q = rope(q, positions, config.rotary_dim, config.rope_theta)
    k = rope(k, positions, config.rotary_dim, config.rope_theta)
    out = np.zeros_like(q)
    group = heads // config.num_key_value_heads
    for t in range(num_tokens):
        for h in range(heads):
            shares = softmax(k[: t + 1, h // group] @ q[t, h] / np.sqrt(dim))
            out[t, h] = shares @ v[: t + 1, h // group]
    return (out * sigmoid(gate)).reshape(num_tokens, -1) @ weights["o_proj"]["kernel"]


def delta_net(weights, config, x):
    """Gated DeltaNet over one whole sequence; returns (y, conv inputs, states per token)."""
    num_tokens, kernel = len(x), config.linear_conv_kernel_dim
    key_heads, value_heads = config.linear_num_key_heads, config.linear_num_value_heads
    dk, dv = config.linear_key_head_dim, config.linear_value_head_dim
    sizes = np.cumsum([key_heads * dk, key_heads * dk, value_heads * dv])
    q, k, v, z = np.split(x @ weights["in_proj_qkvz"]["kernel"], sizes, axis=1)
    b, a = np.split(x @ weights["in_proj_ba"]["kernel"], 2, axis=1)
    inputs = np.concatenate([q, k, v], axis=1)
    mixed = causal_conv(inputs, np.zeros((kernel - 1, inputs.shape[1])), weights["conv_weight"])
    q, k, v = np.split(mixed, sizes[:2], axis=1)
    q, k = q.reshape(num_tokens, key_heads, dk), k.reshape(num_tokens, key_heads, dk)
    q = q / np.sqrt((q * q).sum(-1, keepdims=True) + 1e-6) / np.sqrt(dk)
    k = k / np.sqrt((k * k).sum(-1, keepdims=True) + 1e-6)
    v, z = v.reshape(num_tokens, value_heads, dv), z.reshape(num_tokens, value_heads, dv)
    g = -np.exp(weights["A_log"]) * np.log1p(np.exp(a + weights["dt_bias"]))
    beta = sigmoid(b)
    out = np.zeros_like(v)
    states = np.zeros((num_tokens, value_heads, dk, dv))
    for h in range(value_heads):
        of = h // (value_heads // key_heads)
        out[:, h], states[:, h] = delta_rule(
            q[:, of], k[:, of], v[:, h], g[:, h], beta[:, h], np.zeros((dk, dv))
        )
    out = rms(out, config.rms_norm_eps) * weights["norm"]["weight"] * silu(z)
    return out.reshape(num_tokens, -1) @ weights["out_proj"]["kernel"], inputs, states


def mlp(weights, x):
    inner = silu(x @ weights["gate_proj"]["kernel"]) * (x @ weights["up_proj"]["kernel"])
    return inner @ weights["down_proj"]["kernel"]


def moe(weights, config, x):
    """Token by token, expert by expert."""
    out = sigmoid(x @ weights["shared_expert_gate"]["kernel"]) * mlp(weights["shared_expert"], x)
    for t in range(len(x)):
        shares = softmax(x[t] @ weights["router"]["kernel"])
        chosen = np.argsort(-shares)[: config.num_experts_per_tok]
        total = shares[chosen].sum() if config.norm_topk_prob else 1
        for e in chosen:
            inner = silu(x[t] @ weights["gate_proj"][e]) * (x[t] @ weights["up_proj"][e])
            out[t] += shares[e] / total * (inner @ weights["down_proj"][e])
    return out


def decoder(weights, config, tokens):
    """The whole model on one sequence.

    Returns logits [token, vocab], conv inputs [gdn_layer, token, channel] and delta states
    [gdn_layer, token, head, dk, dv].
    """
    eps = config.rms_norm_eps
    x = weights["embed_tokens"][tokens]
    conv, delta = [], []
    for layer in range(config.num_hidden_layers):
        block = weights["layers"][layer]
        mixed = rms(x, eps) * (1 + block["input_norm"]["weight"])
        if layer % config.full_attention_interval == config.full_attention_interval - 1:
            x = x + attention(block["mixer"], config, mixed)
        else:
            mixed, inputs, states = delta_net(block["mixer"], config, mixed)
            x = x + mixed
            conv.append(inputs)
            delta.append(states)
        mixed = rms(x, eps) * (1 + block["post_norm"]["weight"])
        x = x + (
            moe(block["mlp"], config, mixed) if config.num_experts else mlp(block["mlp"], mixed)
        )
    x = rms(x, eps) * (1 + weights["norm"]["weight"])
    head = weights["embed_tokens"].T if config.tie_word_embeddings else weights["lm_head"]["kernel"]
    return x @ head, np.array(conv), np.array(delta)
