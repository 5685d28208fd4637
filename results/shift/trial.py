"""Trials of networks of rotations and pixel shifts on CIFAR-10: one training run, one line of results.

Every step (augmentation, forward, backward, update) is one replay of a CUDA graph. --data is an .npz with a, b (training
images uint8 (N, 3, 32, 32) and labels) and c, d (test images and labels); --val 1 judges on 5,000 held-out
training images instead.
Certified accuracies here are margins over √2, without a proof: they are for choosing, not for reporting.
"""

import argparse
import json
import math
import time

import numpy as np
import torch
import torch.nn.functional as F

T_START = time.time()
ap = argparse.ArgumentParser()
USUAL = {"stages": "8x512x16", "shift": 0.125, "epochs": 40.0, "batch": 256, "lr": 0.004, "vlr": 0.1}
USUAL |= {"temp": 0.25, "offset": 0.7071, "augp": 0.0, "augm": 1.0, "seed": 0, "tag": "", "data": "cifar.npz"}
USUAL |= {"warm": 0.0, "evals": 2, "pos": "one", "val": 0, "loss": "xent", "gamma": 2.0, "mom": 0.9}
USUAL |= {"nesterov": 0, "save": "", "ns": 5, "bench": 0, "plain": 0, "sched": "linear", "neck": 0, "result": ""}
USUAL |= {"retr": 10, "every": 1, "stop": 1e9, "views": 0, "mid": 0, "single": 0, "rows": "orthonormal"}
USUAL |= {"temp2": 0.0, "offset2": 0.0, "cut": 0, "augend": 1.0, "embed": 0, "skip": 0.0, "beta": 0.5}
USUAL |= {"held": 5000}
for name, usual in USUAL.items():
    ap.add_argument(f"--{name}", type=type(usual), default=usual)
a = ap.parse_args()
gpu = torch.cuda.is_available()
dev = "cuda" if gpu else "cpu"
torch.manual_seed(a.seed)
torch.backends.cuda.matmul.allow_tf32 = True
torch.set_float32_matmul_precision("high")
half = torch.bfloat16 if gpu else torch.float32
z = np.load(a.data)


def put(x):
    return torch.from_numpy(x).to(dev)


xtr, ytr, xte, yte = put(z["a"]), put(z["b"]).long(), put(z["c"]), put(z["d"]).long()
if a.val:
    xte, yte, xtr, ytr = xtr[-a.held :], ytr[-a.held :], xtr[: -a.held], ytr[: -a.held]
# Of each stage: the side of its grid, channels, blocks. Pixels are unshuffled in between.
stages = [tuple(int(v) for v in s.split("x")) for s in a.stages.split(",")]


def orth(*s):
    return torch.linalg.qr(torch.randn(*s, device=dev))[0].contiguous()


P = {}
for s, (g, C, L) in enumerate(stages):
    R = orth(L, C, C)
    P[f"R{s}"] = R
    if a.single:
        R[1::2] = R[: L // 2 * 2 : 2].mT  # one matrix a block: every second one turns back
    else:
        P[f"M{s}"] = R.mT.contiguous()
    P[f"b{s}"] = torch.zeros(L, C, device=dev)
    P[f"p{s}"] = torch.zeros(L, g, g, C if a.pos == "full" else 1, device=dev)
feat = stages[-1][1]
if a.neck:
    P["N"] = orth(a.neck, feat, feat)
    P["c"] = torch.zeros(a.neck, feat, device=dev)
P["H"] = orth(feat, 10)
P["h"] = torch.zeros(10, device=dev)
mats = [k for k in P if k[0] in ("RMN" if a.rows == "unit" else "RMNH")]
vecs = [k for k in P if k not in mats]


def act(x):
    n = int(x.shape[-1] * a.beta)
    return torch.cat([x[..., :n].abs(), x[..., n:]], -1)


def shift(h):
    n = int(h.shape[-1] * a.shift)
    u, d, l, r, rest = h.split([n, n, n, n, h.shape[-1] - 4 * n], -1)
    return torch.cat([u.roll(1, 1), d.roll(-1, 1), l.roll(1, 2), r.roll(-1, 2), rest], -1)


def unshuffle(x, f):
    B, H, W, C = x.shape
    return x.view(B, H // f, f, W // f, f, C).permute(0, 1, 3, 2, 4, 5).reshape(B, H // f, W // f, f * f * C)


def middle(h):  # an activation between the two matrices, on the channels that were moved (1), on the others (2)
    u, v = h.chunk(2, -1)
    return torch.cat([u.abs(), v] if a.mid == 1 else [u, v.abs()], -1) if a.mid else h


def between(x):  # of half the moved channels and half of the others
    u, v, w = x.split([x.shape[-1] // 4, x.shape[-1] // 2, x.shape[-1] // 4], -1)
    return torch.cat([u, v.abs(), w], -1)


if a.single:

    def block(h, R, b, p):
        return between(shift(h @ R) + b) + p

    def last(h, R, b):
        return between(shift(h @ R) + b)
else:

    def block(h, R, M, b, p):
        return act(middle(shift(h @ R)) @ M + b) + p  # p is the next block's position bias: one kernel less

    def last(h, R, M, b):
        return act(middle(shift(h @ R)) @ M + b)


def pool(x):
    return x.float().square().sum((1, 2)).add(1e-6).sqrt().to(x.dtype)


def comp(f):  # a block, not the network: seconds to compile
    return torch.compile(f, dynamic=False, fullgraph=True) if gpu else f


cblock, clast, cpool = comp(block), comp(last), comp(pool)


def net(W, x, fast=True):
    bl, la, po = (cblock, clast, cpool) if fast else (block, last, pool)
    if a.embed:  # an isometry: each pixel with its neighbours, three as tried first, or four as in the product
        moves = [(1, 0), (0, 1), (1, 1)] if a.embed == 1 else [(1, 0), (-1, 0), (0, 1), (0, -1)]
        x = torch.cat([x, *(x.roll(move, (1, 2)) for move in moves)], -1) / (len(moves) + 1) ** 0.5
    x = unshuffle(x, 32 // stages[0][0])
    for s, (g, C, L) in enumerate(stages):
        if s:
            x = unshuffle(x, stages[s - 1][0] // g)
        if x.shape[-1] < C:
            x = F.pad(x, (0, C - x.shape[-1]))
        *Ws, ps = (W[f"{k}{s}"].unbind(0) for k in ("Rbp" if a.single else "RMbp"))  # unbind: its gradient is one stack
        x = x + ps[0]
        for l in range(L):
            x = bl(x, *(w[l] for w in Ws), ps[l + 1]) if l + 1 < L else la(x, *(w[l] for w in Ws))
    f = po(x)
    if a.neck:
        for w, c in zip(W["N"].unbind(0), W["c"].unbind(0), strict=False):
            f = act(f @ w + c)
    if a.rows == "unit":
        return (f @ rows(W["H"].float()).to(f.dtype) + W["h"]).float()
    return (f @ W["H"] + W["h"]).float()


def rows(H):
    return H / H.square().sum(0, keepdim=True).sqrt()


def scaled(z, H, y):  # margins of each pair in units of sqrt(2)/|w_i - w_j|, as logits against the class y
    w = rows(H.float())
    G = w.mT @ w
    scale = (2 / (2 - 2 * G).clamp_min(1e-4)).sqrt()
    scale = scale - torch.diag_embed(scale.diagonal()) + torch.eye(10, device=z.device)
    return -(z.gather(1, y[:, None]) - z) * scale[y]


off = torch.tensor(a.offset, device=dev)
temp = torch.tensor(a.temp, device=dev)


def loss_of(z, y, off, temp, weight):
    one = F.one_hot(y, 10).to(z.dtype)
    if a.loss == "emma":
        m = (z * one).sum(1, keepdim=True) - z
        return F.cross_entropy((z + (1 - one) * torch.minimum(m.detach().clamp_min(0), off)) / temp, y) * temp
    ce = F.cross_entropy((z - off * one) / temp, y, reduction="none")
    if a.skip:
        return (ce * weight).mean() * temp, ce.detach()
    if a.loss == "la":
        ce = ce * (1 - torch.exp(-ce)).pow(a.gamma)
    return ce.mean() * temp


closs = comp(loss_of)
COEF = [*([(3.4445, -4.775, 2.0315)] * 4)[: a.ns - 1], (2.0, -1.5, 0.5)]


def update(U, m, acc, g, Uh, lr):
    g = g + acc if a.every > 1 else g
    if not a.plain:  # the tangent projection
        S = Uh.mT @ g
        g = torch.baddbmm(g, Uh, S + S.mT, beta=1, alpha=-0.5)
    g = g.float()
    m = a.mom**a.every * m + g
    d = g + a.mom * m if a.nesterov else m
    if a.plain:
        return U - lr * 30 * d, m, (U - lr * 30 * d).to(Uh.dtype), g
    x = (d / (d.square().sum((-2, -1), keepdim=True).sqrt() + 1e-12)).to(Uh.dtype)
    for A_, B_, C_ in COEF:
        G = x.mT @ x
        x = torch.baddbmm(x, x, torch.baddbmm(G, G, G, beta=B_, alpha=C_), beta=A_, alpha=1)
    U = U - lr * x.float()
    return U, m, U.to(Uh.dtype), x


def coast(U, acc, g, x, lr):  # between two directions: go on in the last one, and collect the gradient
    U = U - lr * x.float()
    return U, U.to(x.dtype), acc + g


ccoast = comp(coast)


def adam(P, m, v, g, lr, t):
    g = g.float()
    m = m + 0.1 * (g - m)
    v = v + 0.001 * (g * g - v)
    P = P - lr * a.vlr * (m / (1 - torch.exp(math.log(0.9) * (t + 1)))) / (
        (v / (1 - torch.exp(math.log(0.999) * (t + 1)))).sqrt() + 1e-8
    )
    return P, m, v, P.to(half)


cadam = comp(adam)
cupdate = comp(update)


def retract(X, n=1):
    for _ in range(n):
        X = torch.baddbmm(X, X, X.mT @ X, beta=1.5, alpha=-0.5)
    return X


def b3(x):
    return x if x.dim() == 3 else x[None]


mom = {k: torch.zeros_like(b3(P[k])) for k in mats}
sizes = [P[k].numel() for k in vecs]
flat = torch.cat([P[k].flatten() for k in vecs])
flat_low = flat.to(half)
for k, part in zip(vecs, flat.split(sizes), strict=True):
    P[k] = part.view_as(P[k])
low = {k: P[k].to(half).clone().requires_grad_(True) for k in mats}
for k, lo in zip(vecs, flat_low.split(sizes), strict=False):
    low[k] = lo.view_as(P[k]).detach().requires_grad_(True)
va = torch.zeros_like(flat), torch.zeros_like(flat)
acc = {k: torch.zeros_like(b3(low[k].detach())) for k in mats}
way = {k: torch.zeros_like(b3(low[k].detach())) for k in mats}
it_t = torch.zeros((), device=dev, dtype=torch.long)
ctr = torch.zeros(1, device=dev, dtype=torch.long)
tl = torch.zeros((), device=dev)
tc = torch.zeros((), device=dev)
N = len(xtr)
per = N // a.batch
total = int(a.epochs * per)


@torch.no_grad()
def optimise(lr, t, retr, polar):
    new = cadam(flat, *va, torch.cat([low[k].grad.flatten() for k in vecs]), lr, t)
    for old, one in zip((flat, *va, flat_low), new, strict=False):
        old.copy_(one)
    for k in mats:
        g, Uh = b3(low[k].grad), b3(low[k].detach())
        if polar:
            U, m, Uh, x = cupdate(b3(P[k]), mom[k], acc[k], g, Uh, lr)
            mom[k].copy_(m)
            if a.every > 1:
                way[k].copy_(x)
                acc[k].zero_()
        else:
            U, Uh, s = ccoast(b3(P[k]), acc[k], g, way[k], lr)
            acc[k].copy_(s)
        if retr and not a.plain:
            U = retract(U)
            Uh = U.to(half)
        b3(P[k]).copy_(U)
        b3(low[k].detach()).copy_(Uh)
    for k in P:
        low[k].grad = None


pad = F.pad(xtr, (4, 4, 4, 4)).permute(0, 2, 3, 1).contiguous()
ar = torch.arange(32, device=dev)


def rnd(*s):
    return torch.rand(*s, device=dev)


def augment(idx, w, pad, on):
    n = len(idx)
    w = w.unbind(1)

    def whole(u):
        return (u * 9).long().clamp(0, 8)[:, None]

    rows = whole(w[0]) + ar
    cols = whole(w[1]) + torch.where(w[2][:, None] < 0.5, 31 - ar, ar)
    x = pad[idx[:, None, None], rows[:, :, None], cols[:, None, :]].float().div(255)
    if a.augp:  # colour on a share of the images, an affine map on a share
        s = a.augm
        kk = (w[3] < a.augp * on).float()

        def u(i, r):
            return (1 + kk * (w[i] * 2 - 1) * r * s).view(n, 1, 1, 1)

        m = x.mean((1, 2, 3), keepdim=True)
        x = (x - m) * u(4, 0.4) + m * u(5, 0.4)
        gray = x.mean(3, keepdim=True)
        x = ((x - gray) * u(6, 0.6) + gray).clamp(0, 1)
        k2 = (w[7] < a.augp * on).float()

        def v(i, r):
            return k2 * (w[i] * 2 - 1) * r * s

        th, sx, sy, sh, tx, ty = v(8, 0.35), 1 + v(9, 0.2), 1 + v(10, 0.2), v(11, 0.2), v(12, 0.12), v(13, 0.12)
        Th = torch.stack(
            [torch.stack([sx * th.cos(), -th.sin() + sh, tx], 1), torch.stack([th.sin(), sy * th.cos(), ty], 1)], 1
        )
        x = F.grid_sample(
            x.permute(0, 3, 1, 2),
            F.affine_grid(Th, (n, 3, 32, 32), align_corners=False),
            align_corners=False,
            padding_mode="zeros",
        ).permute(0, 2, 3, 1)
    if a.cut:
        cy, cx = (w[14] * 32)[:, None, None], (w[15] * 32)[:, None, None]
        x = (
            x
            * ~(((ar[None, :, None] - cy).abs() < a.cut / 2) & ((ar[None, None, :] - cx).abs() < a.cut / 2))[..., None]
        )
    return x.to(half)


caugment = comp(augment)
perm = torch.randperm(N, device=dev)[: per * a.batch].view(per, a.batch).clone()
known = torch.full((N,), 1e9, device=dev)
wts = torch.ones(per, a.batch, device=dev)


def choose():  # leaves out a share of the images below the mean loss, counts the others for them; returns how many steps
    order = torch.randperm(N, device=dev)
    w = torch.ones(N, device=dev)
    if a.skip and it > per and it < 0.875 * total:
        easy = known < known.mean()
        drop = easy & (torch.rand(N, device=dev) < a.skip)
        w[easy] = 1 / (1 - a.skip)
        order = order[~drop[order]]
    n = len(order) // a.batch
    order = order[: n * a.batch]
    perm[:n].copy_(order.view(n, a.batch))
    wts[:n].copy_(w[order].view(n, a.batch))
    ctr.zero_()
    return n


def step(retr=False, polar=True):
    t = it_t.float()
    f = t / total
    sch = (1 - f) if a.sched == "linear" else 0.5 * (1 + torch.cos(math.pi * f))
    if a.warm:
        sch = sch * torch.clamp(f / a.warm, max=1.0)
    idx = perm.index_select(0, ctr).view(-1)
    x = caugment(idx, rnd(a.batch, 16), pad, (f < a.augend).float()).contiguous()
    y = ytr.index_select(0, idx)
    lg = net(low, x)
    te = temp + (a.temp2 - a.temp) * f if a.temp2 else temp
    of = off + (a.offset2 - a.offset) * f if a.offset2 else off
    loss = closs(scaled(lg, low["H"], y) if a.rows == "unit" else lg, y, of, te, wts.index_select(0, ctr).view(-1))
    loss, each = loss if a.skip else (loss, None)
    loss.backward()
    if a.skip:
        known.index_copy_(0, idx, each)
    tl.add_(loss.detach())
    tc.add_((lg.argmax(1) == y).sum())
    optimise(a.lr * sch, t, retr, polar)
    it_t.add_(1)
    ctr.add_(1)


@torch.no_grad()
def evaluate(final=False):
    W = {k: P[k].detach().clone() for k in P}
    torch.backends.cuda.matmul.allow_tf32 = False
    for k in mats if not a.plain else ():
        W[k] = retract(b3(W[k]), 4).view_as(P[k])
    torch.backends.cuda.matmul.allow_tf32 = not final

    def logits(f):
        return torch.cat([net(W, f(b.permute(0, 2, 3, 1).float().div(255)), False) for b in xte.split(500)])

    def accuracies(lg):
        ok = lg.argmax(1) == yte
        lg = scaled(lg, W["H"], yte) if a.rows == "unit" else lg
        mar = lg.gather(1, yte[:, None]).squeeze(1) - lg.scatter(1, yte[:, None], -1e9).amax(1)
        return [100 * ok.float().mean().item()] + [
            100 * (mar > math.sqrt(2) * e / 255).float().mean().item() for e in (36, 72, 108)
        ]

    result = accuracies(logits(lambda x: x))
    if final and a.views:  # the mean of the logits over moved and mirrored images: it has no larger Lipschitz constant

        def move(dy, dx, flip):
            return lambda x: F.pad((x.flip(2) if flip else x), (0, 0, 3, 3, 3, 3))[
                :, 3 + dy : 35 + dy, 3 + dx : 35 + dx
            ].contiguous()

        seen = {
            (dy, dx): sum(logits(move(dy, dx, f)) for f in (0, 1)) / 2 for dy in range(-3, 4) for dx in range(-3, 4)
        }
        sets = {"mirrored": [(0, 0)]} | {f"cross {r}": [(0, 0), (r, 0), (-r, 0), (0, r), (0, -r)] for r in (1, 2, 3)}
        sets |= {f"square {r}": [(y, x) for y in range(-r, r + 1) for x in range(-r, r + 1)] for r in (1, 2, 3)} | {
            "corners 1": [(0, 0), (1, 1), (1, -1), (-1, 1), (-1, -1)]
        }
        log["views"] = {name: accuracies(sum(seen[v] for v in moved) / len(moved)) for name, moved in sets.items()}
        for name, r in log["views"].items():
            print(a.tag, name, "/".join(f"{v:.2f}" for v in r), flush=True)
    torch.backends.cuda.matmul.allow_tf32 = True
    return result, W


graphs = {}


def run(retr, polar):  # once eagerly (compiles), then captured, then replayed; a graph for each kind of step
    key = retr, polar
    if not gpu:
        step(*key)
        return
    if key not in graphs:
        s = torch.cuda.Stream()
        s.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(s):
            step(*key)
        torch.cuda.current_stream().wait_stream(s)
        graphs[key] = None
        return
    if graphs[key] is None:
        torch.cuda.synchronize()
        graphs[key] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[key]):
            step(*key)
    graphs[key].replay()


it = seen = n1 = 0
t0 = time.time()
t1 = None
marks = {round(total * (i + 1) / a.evals) for i in range(a.evals)}
nparam = sum(p.numel() for p in P.values())
log = {"args": vars(a), "params": nparam, "evals": []}
stopped = False
while it < total and not stopped:
    for _i in range(choose()):
        if it >= total:
            break
        run(it % a.retr == a.retr - 1, it % a.every == 0)
        it += 1
        seen += a.batch
        if it == 3 * a.retr + 2:
            if gpu:
                torch.cuda.synchronize()
            t1 = time.time()
            n1 = it
        if a.bench and it == n1 + a.bench:
            stopped = True
            break
        if it in marks:
            if gpu:
                torch.cuda.synchronize()
            el = time.time() - t0
            e, W = evaluate(it == total)
            ms = 1e3 * (time.time() - t1) / max(1, it - n1) if t1 else 0
            log["evals"].append(
                {
                    "epoch": it / per,
                    "seconds": el,
                    "ms": ms,
                    "loss": tl.item() * a.batch / seen,
                    "train": 100 * tc.item() / seen,
                    "test": e,
                }
            )
            where = "val" if a.val else "test"
            line = f"{a.tag} ep {it / per:.1f} {el:.0f}s {ms:.2f}ms train {100 * tc.item() / seen:.1f} {where} "
            print(line + "/".join(f"{v:.2f}" for v in e), flush=True)
            tl.zero_()
            tc.zero_()
            seen = 0
        if time.time() - T_START > a.stop:
            stopped = True
            print("stop", flush=True)
            break
if gpu:
    torch.cuda.synchronize()
if a.bench:
    each = (time.time() - t1) / a.bench
    work = 6 * sum(2 * L * C * C * g * g for g, C, L in stages) * a.batch / each / 1e12
    print(f"{a.tag} {1e3 * each:.3f} ms a step, set up in {t1 - T_START:.0f} s, {work:.0f} TFLOP/s")
if a.result:
    with open(a.result, "a") as file:
        file.write(json.dumps(log | {"seconds": time.time() - T_START}) + "\n")
if a.save and not a.bench:  # in parts of at most 15 MB, retracted
    W = evaluate(True)[1]
    parts = [(f"{k}.{i}", r.cpu()) for k in W for i, r in enumerate(W[k].split(3) if W[k].numel() > 3e6 else [W[k]])]
    n = 0
    size = 0
    bag = {}
    for k, r in [*parts, (None, None)]:
        if bag and (k is None or size + r.numel() * 4 > 15.5e6):
            torch.save(bag, f"{a.save}.{n}.pt")
            n += 1
            bag = {}
            size = 0
        if k is not None:
            bag[k] = r.clone()
            size += r.numel() * 4
