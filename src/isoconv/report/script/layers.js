// Histograms of singular values, the gradient by depth, the training curves.

function spectra() {
  const known = runs.map((run, index) => [run, index]).filter(([run]) => run.spectra && run.spectra.length);
  if (!known.length) return;
  byId("spectra").hidden = false;
  document.querySelector("#spectra .before").hidden = !known.some(([run]) => run.spectra.some((layer) => layer.before));
  const panels = document.querySelector("#spectra .panels");
  for (const [run, index] of known) {
    const end = Math.max(1.1, 1.04 * Math.max(...run.spectra.map((layer) => Math.max((layer.before || layer.after).max, layer.after.max))));
    const grid = element("div", { className: "panel-grid" });
    for (const layer of run.spectra) {
      const plot = element("div", { className: "plot" });
      const range = layer.after.min.toFixed(2) === layer.after.max.toFixed(2)
        ? "all " + layer.after.max.toFixed(2) : `${layer.after.min.toFixed(2)} to ${layer.after.max.toFixed(2)}`;
      grid.append(element("figure", { className: "panel " + colour(index) },
        element("figcaption", {}, element("b", {}, layer.title), element("span", {}, range)), plot));
      const draw = () => histogram(plot, layer, end, run.name);
      new ResizeObserver(draw).observe(plot);
      draw();
    }
    const title = element("h3", { className: colour(index) }, element("span", { className: "swatch" }), run.name);
    panels.append(element("div", { className: "spectrum" }, title, grid));
  }
}

function grouped(layer, end) {
  // About 30 groups, in whose middle 1 lies, as it does in the bins themselves.
  const wanted = end / layer.width / 30, ones = Math.round(1 / layer.width);
  const whole = [1, 2, 4, 5, 10, 20, 25, 50].filter((many) => ones % many === 0);
  const group = ones < 1 ? Math.max(1, Math.round(wanted))
    : whole.reduce((best, many) => (Math.abs(many - wanted) < Math.abs(best - wanted) ? many : best));
  const width = group * layer.width, bins = Math.floor(end / width + 0.5) + 1;
  const sums = (counts) => {
    const found = new Array(bins).fill(0), total = counts.reduce((a, b) => a + b, 0) || 1;
    counts.forEach((count, k) => { found[Math.min(bins - 1, Math.round(k / group))] += (100 * count) / total; });
    return found;
  };
  return { width, before: sums((layer.before || layer.after).counts), after: sums(layer.after.counts) };
}

function histogram(plot, layer, end, name) {
  const width = plot.clientWidth, height = plot.clientHeight;
  if (!width) return;
  const { width: bin, before, after } = grouped(layer, end);
  const top = Math.max(...before, ...after), floor = height - 18, ceiling = 8;
  const across = (value) => (Math.min(end, Math.max(0, value)) / end) * width;
  const up = (share) => floor - (share / top) * (floor - ceiling);
  const svg = drawn("svg", { role: "img", "aria-label":
    `${name}, ${layer.title}: singular values ` +
    (layer.before ? `from ${short(layer.before.min)} to ${short(layer.before.max)} before training, ` : "") +
    `from ${short(layer.after.min)} to ${short(layer.after.max)} after training` });
  svg.append(drawn("line", { class: "one", x1: across(1), x2: across(1), y1: 0, y2: floor }));
  after.forEach((share, k) => {
    if (share > 0) svg.append(drawn("rect", { class: "bar", x: across((k - 0.5) * bin), y: Math.min(floor - 1.5, up(share)),
      width: Math.max(1, across((k + 0.5) * bin) - across((k - 0.5) * bin) - 0.6), height: Math.max(1.5, floor - up(share)) }));
  });
  const outline = [[0, floor]];
  before.forEach((share, k) => { outline.push([across((k - 0.5) * bin), up(share)], [across((k + 0.5) * bin), up(share)]); });
  outline.push([outline[outline.length - 1][0], floor]);
  if (layer.before) svg.append(drawn("path", { class: "outline", d: path(outline) }));
  svg.append(drawn("line", { class: "axis", x1: 0, x2: width, y1: floor, y2: floor }));
  for (const value of ticks(0, end, width / 60)) {
    svg.append(drawn("text", { x: across(value), y: height - 3, "text-anchor": value === 0 ? "start" : across(value) > width - 8 ? "end" : "middle" }, short(value)));
  }
  plot.replaceChildren(svg);
  plot.onpointermove = (event) => {
    const k = Math.min(after.length - 1, Math.round(((event.clientX - plot.getBoundingClientRect().left) / width) * end / bin));
    showTip(event, `${short(Math.max(0, (k - 0.5) * bin))} to ${short((k + 0.5) * bin)}`,
      [...(layer.before ? [[null, "before training", percent(before[k] || 0)]] : []), [null, "after training", percent(after[k] || 0)]]);
  };
  plot.onpointerleave = hideTip;
}

function gradients() {
  const known = () => visible().filter(([run]) => run.gradients);
  if (!runs.some((run) => run.gradients)) return;
  const section = byId("gradients");
  section.hidden = false;
  const all = runs.filter((run) => run.gradients);
  const places = all.map((run) => run.gradients.places).reduce((a, b) => (b.length > a.length ? b : a));
  const values = all.flatMap((run) => [...(run.gradients.before || run.gradients.after).mean, ...run.gradients.after.mean, ...run.gradients.after.low, ...run.gradients.after.high]).filter((v) => v > 0);
  const low = Math.min(...values), high = Math.max(...values);
  const log = high / low > 20;
  // Networks of different depth end together, at the logits.
  const at = (run, k) => k + places.length - run.gradients.places.length;
  chart(section.querySelector("figure"), () => ({
    x: { low: 0, high: Math.max(1, places.length - 1), label: "depth", names: places },
    y: log ? { low: low / 1.3, high: Math.max(1, high) * 1.3, log } : { low: 0, high: Math.max(1.1, high * 1.05) },
    describe: "Relative gradient norm by depth after training. " + known().map(([run]) => `${run.name}: ${short(run.gradients.after.mean[0])} at the image.`).join(" "),
    layers: (scale) => known().map(([run, index]) => {
      const { before, after } = run.gradients;
      const line = (norms) => norms.map((norm, k) => [scale.across(at(run, k)), scale.up(norm)]);
      return drawn("g", { class: colour(index) },
        drawn("path", { class: "band", d: path([...line(after.high), ...line(after.low).reverse()]) + "Z" }),
        ...(before ? [drawn("path", { class: "thin dashed", d: path(line(before.mean)) })] : []),
        drawn("path", { class: "line", d: path(line(after.mean)) }),
        ...line(after.mean).map(([x, y]) => drawn("circle", { class: "dot", cx: x, cy: y, r: 3.5 })));
    }),
  }), (event, k, scale) => {
    const here = known().filter(([run]) => k - at(run, 0) >= 0);
    showTip(event, places[k], here.map(([run, index]) => [index, run.name,
      short(run.gradients.after.mean[k - at(run, 0)]) +
        (run.gradients.before ? ` (before ${short(run.gradients.before.mean[k - at(run, 0)])})` : "")]));
    return crosshair(scale, k, here.map(([run, index]) => [index, k, run.gradients.after.mean[k - at(run, 0)]]));
  });
  section.querySelector(".key").append(
    keyEntry("after training", drawn("path", { class: "line", d: "M0 6L30 6" })),
    ...(all.some((run) => run.gradients.before) ? [keyEntry("before training", drawn("path", { class: "thin dashed", d: "M0 6L30 6" }))] : []));
}

function training() {
  const all = runs.filter((run) => run.metrics.epoch.length);
  if (!all.length) return;
  byId("training").hidden = false;
  const [accuracy, loss] = document.querySelectorAll("#training figure");
  const known = () => visible().filter(([run]) => run.metrics.epoch.length);
  const epochs = Math.max(2, ...all.map((run) => Math.max(...run.metrics.epoch)));
  const one = (figure, name, y, show) => chart(figure, () => ({
    x: { low: 1, high: epochs, label: "epoch" },
    y,
    describe: `${name} by epoch. ` + known().map(([run]) => `${run.name}: ${show(run.metrics[name].at(-1))} at the end.${keptWords(run)}`).join(" "),
    layers: (scale) => known().map(([run, index]) => drawn("g", { class: colour(index) }, ...curve(scale, run, run.metrics[name], "line", "dot"),
      ...(heldOut(run, name) ? curve(scale, run, heldOut(run, name), "thin dashed", "point") : []), ...keptMark(scale, run, heldOut(run, name) || run.metrics[name]))),
  }), (event, epoch, scale) => {
    const near = Math.round(epoch);
    const here = known().map(([run, index]) => [run, index, run.metrics.epoch.indexOf(near)]).filter(([, , k]) => k >= 0);
    const held = (run, k) => (heldOut(run, name) && heldOut(run, name)[k] !== null ? `, held out ${show(heldOut(run, name)[k])}` : "");
    showTip(event, "epoch " + near, here.map(([run, index, k]) => [index, run.name + (run.kept === near ? ", kept" : ""), show(run.metrics[name][k]) + held(run, k)]));
    return crosshair(scale, near, here.map(([run, index, k]) => [index, near, run.metrics[name][k]]));
  });
  const lowest = Math.min(...all.flatMap((run) => [...run.metrics.accuracy, ...(run.validation || []).filter((share) => share !== null)]));
  one(accuracy, "accuracy", { low: Math.max(0, Math.floor((lowest - 2) / 10) * 10), high: 100, percent: true }, (value) => percent(value));
  const losses = all.flatMap((run) => run.metrics.loss);
  const high = Math.max(...losses), low = Math.min(...losses, 0);
  one(loss, "loss", { low, high: high > low ? high * 1.04 : low + 1 }, short);
  if (!all.some((run) => run.validation)) return;
  document.querySelector("#training .key").append(
    keyEntry("training batches", drawn("path", { class: "line", d: "M0 6L30 6" })),
    keyEntry("held-out images", drawn("path", { class: "thin dashed", d: "M0 6L30 6" })),
    keyEntry("the epoch that was kept", drawn("circle", { class: "point", cx: 15, cy: 6, r: 5 })));
}

/** The score on held-out images by epoch; null where the chart is of something else, or none were held out. */
const heldOut = (run, name) => (name === "accuracy" ? run.validation : null);

function curve(scale, run, values, line, dot) {
  const points = run.metrics.epoch.map((epoch, k) => [epoch, values[k]]).filter(([, value]) => value !== null)
    .map(([epoch, value]) => [scale.across(epoch), scale.up(value)]);
  return [drawn("path", { class: line, d: path(points) }),
    ...(points.length === 1 ? [drawn("circle", { class: dot, cx: points[0][0], cy: points[0][1], r: 4 })] : [])];
}

/** A ring at the epoch whose network is the run's, and a line down to the axis. */
function keptMark(scale, run, values) {
  const value = values[run.metrics.epoch.indexOf(run.kept)];
  if (value === undefined || value === null) return [];
  const x = scale.across(run.kept), y = scale.up(value);
  return [drawn("line", { class: "thin dotted", x1: x, x2: x, y1: y, y2: scale.inner.bottom }),
    drawn("circle", { class: "point kept", cx: x, cy: y, r: 5 })];
}

function keptWords(run) {
  const share = run.validation && run.validation[run.metrics.epoch.indexOf(run.kept)];
  return run.kept ? ` Epoch ${run.kept} is kept${share ? `, with ${percent(share)} on held-out images` : ""}.` : "";
}
