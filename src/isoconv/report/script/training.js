// The training curves.

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
    describe: `${name} by epoch. ` + known().map(([run]) => `${run.name}: ${show(run.metrics[name].at(-1))} at the end.`).join(" "),
    layers: (scale) => known().map(([run, index]) => drawn("g", { class: colour(index) }, drawn("path", { class: "line",
      d: path(run.metrics.epoch.map((epoch, k) => [scale.across(epoch), scale.up(run.metrics[name][k])])) }),
      ...(run.metrics.epoch.length === 1 ? [drawn("circle", { class: "dot", cx: scale.across(run.metrics.epoch[0]), cy: scale.up(run.metrics[name][0]), r: 4 })] : []))),
  }), (event, epoch, scale) => {
    const near = Math.round(epoch);
    const here = known().map(([run, index]) => [run, index, run.metrics.epoch.indexOf(near)]).filter(([, , k]) => k >= 0);
    showTip(event, "epoch " + near, here.map(([run, index, k]) => [index, run.name, show(run.metrics[name][k])]));
    return crosshair(scale, near, here.map(([run, index, k]) => [index, near, run.metrics[name][k]]));
  });
  const lowest = Math.min(...all.flatMap((run) => run.metrics.accuracy));
  one(accuracy, "accuracy", { low: Math.max(0, Math.floor((lowest - 2) / 10) * 10), high: 100, percent: true }, (value) => percent(value));
  const losses = all.flatMap((run) => run.metrics.loss);
  const high = Math.max(...losses), low = Math.min(...losses, 0);
  one(loss, "loss", { low, high: high > low ? high * 1.04 : low + 1 }, short);
}
