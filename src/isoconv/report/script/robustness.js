// Certified accuracy and attacks against ε.

const shapes = {
  pgd: (x, y) => drawn("circle", { class: "point", cx: x, cy: y, r: 4.5 }),
  fgsm: (x, y) => drawn("path", { class: "point", d: `M${x} ${y - 5}L${x + 5} ${y + 4}L${x - 5} ${y + 4}Z` }),
  apgd: (x, y) => drawn("rect", { class: "point", x: x - 4, y: y - 4, width: 8, height: 8 }),
  boundary: (x, y) => drawn("path", { class: "point", d: `M${x} ${y - 5.5}L${x + 5.5} ${y}L${x} ${y + 5.5}L${x - 5.5} ${y}Z` }),
};
const shape = (kind, x, y) => (shapes[kind] || ((a, b) => drawn("path", { class: "point", d: `M${a - 4} ${b - 4}L${a + 4} ${b + 4}M${a - 4} ${b + 4}L${a + 4} ${b - 4}` })))(x, y);
const kinds = [...new Set(runs.flatMap((run) => run.attacks.map((row) => row.attack)))];

function robustnessLayers(scale) {
  const found = [];
  for (const [run, index] of visible()) {
    const group = drawn("g", { class: colour(index) });
    // Marks alone: a line between two of them would say something of budgets that nobody tried.
    group.append(...run.attacks.filter((row) => row.epsilon > 0).map((row) => shape(row.attack, scale.across(row.epsilon), scale.up(row.accuracy))));
    if (run.radii) {
      const points = [[scale.across(0), scale.up(run.clean)]];
      const columns = Math.ceil(scale.inner.right - scale.inner.left);
      for (let k = 0; k <= columns; k++) {
        const epsilon = (largest * k) / columns || largest * 1e-9;
        const y = scale.up(certifiedAt(run, epsilon));
        if (points[points.length - 1][1] !== y) points.push([scale.across(epsilon), points[points.length - 1][1]], [scale.across(epsilon), y]);
      }
      points.push([scale.inner.right, points[points.length - 1][1]]);
      group.append(drawn("path", { class: "line", d: path(points) }));
    }
    found.push(group);
  }
  if (state.epsilon <= largest) {
    const x = scale.across(state.epsilon);
    found.push(drawn("line", { class: "here", x1: x, x2: x, y1: scale.inner.top, y2: scale.inner.bottom }));
    const left = x < scale.inner.right - 90;
    found.push(drawn("text", { class: "here-text", x: x + (left ? 6 : -6), y: scale.inner.top + 10, "text-anchor": left ? "start" : "end" },
      "ε = " + budgetName(state.epsilon)));
  }
  return found;
}

function robustness() {
  if (!runs.some((run) => run.radii || run.attacks.length)) return;
  const section = byId("robustness");
  section.hidden = false;
  const legend = section.querySelector(".legend");
  if (runs.length > 1) {
    runs.forEach((run, index) => {
      const button = element("button", { type: "button", className: colour(index), ariaPressed: "true" },
        element("span", { className: "swatch" }), run.name);
      button.addEventListener("click", () => {
        if (state.hidden.has(index)) state.hidden.delete(index); else state.hidden.add(index);
        button.ariaPressed = String(!state.hidden.has(index));
        redraw();
      });
      legend.append(button);
    });
  }
  chart(section.querySelector("figure"), () => ({
    x: { low: 0, high: largest, label: "radius ε (L2, pixels from 0 to 1)" },
    y: { low: 0, high: 100, percent: true },
    describe: "Certified accuracy against ε. " + visible().filter(([run]) => run.clean !== null).map(([run]) => {
      const proved = certifiedAt(run, state.epsilon);
      return `${run.name}: ${percent(run.clean, run)} clean` + (proved === null ? "." : `, ${percent(proved, run)} certified at ${short(state.epsilon)}.`);
    }).join(" "),
    layers: robustnessLayers,
  }), (event, epsilon, scale) => {
    const lines = [], dots = [];
    for (const [run, index] of visible()) {
      const proved = certifiedAt(run, epsilon);
      if (proved !== null && run.radii) { lines.push([index, run.name, "certified " + percent(proved, run)]); dots.push([index, epsilon, proved]); }
      for (const row of run.attacks) {
        if (Math.abs(scale.across(row.epsilon) - scale.across(epsilon)) < 7) {
          lines.push([index, `${run.name}, ${row.attack.toUpperCase()} at ${budgetName(row.epsilon)}`, percent(row.accuracy, run) + (row.images === run.images ? "" : ` of ${row.images}`)]);
        }
      }
    }
    showTip(event, "ε = " + short(epsilon), lines);
    return crosshair(scale, epsilon, dots);
  }, setEpsilon);
  const key = section.querySelector(".key");
  if (runs.some((run) => run.radii)) key.append(keyEntry("certified", drawn("path", { class: "line", d: "M0 6L30 6" })));
  for (const kind of kinds) {
    key.append(keyEntry(kind.toUpperCase() + " attack", shape(kind, 15, 6)));
  }
}

const keyEntry = (name, ...children) => element("span", {}, drawn("svg", { "aria-hidden": "true" }, ...children), name);
