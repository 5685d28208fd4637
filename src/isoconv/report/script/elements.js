// What everything else stands on: the data in the page, the state, elements of HTML and SVG, numbers as text, charts.
// Text that users chose is only ever set as text, never as HTML.

const runs = JSON.parse(document.getElementById("data").textContent).runs;
const byId = (id) => document.getElementById(id);
const colour = (index) => "run-" + (index % 8);
const state = { epsilon: 0, hidden: new Set(), shown: 0 };

function element(tag, properties, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (name in made && name !== "list") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

function drawn(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const place = (node, left, width) => {
  node.style.left = left + "%";
  if (width !== undefined) node.style.width = Math.max(0, width) + "%";
  return node;
};

/** Never rounded up, for it may be something that is proved; as exact as a share of so many images needs. */
function percent(value, run) {
  const digits = run && 1000 % run.images ? 2 : 1, scale = 10 ** digits;
  return (Math.floor(value * scale + 1e-6) / scale).toFixed(digits) + " %";
}

const floored = (value) => (Math.floor(value * 1000) / 1000).toFixed(3);
const short = (value) => String(Number(value.toPrecision(4)));

function budgetName(epsilon) {
  const steps = epsilon * 255;
  const whole = Math.round(steps);
  return whole > 0 && Math.abs(steps - whole) < 1e-9 && epsilon < 1 && short(epsilon) !== String(epsilon)
    ? whole + "/255" : short(epsilon);
}

function niceStep(span, count) {
  const rough = span / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((m) => m * power).find((step) => step >= rough * 0.999);
}

function ticks(low, high, count) {
  const step = niceStep(high - low, count);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step);
  return found;
}

function logTicks(low, high) {
  const found = [], wide = high / low > 2000;
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
    for (const digit of wide ? [1] : [1, 2, 5]) found.push(digit * 10 ** power);
  }
  return found.filter((value) => value >= low && value <= high);
}

// A chart with two axes, and the read-out that follows the pointer.

const tip = byId("tip");

function showTip(event, title, lines) {
  tip.replaceChildren(element("b", {}, title), ...lines.map(([index, name, value]) => element(
    "div", index === null ? {} : { className: colour(index) },
    element("span", {}, index === null ? "" : element("i", { className: "swatch" }), name), element("span", {}, value))));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = event.clientX + 16 + box.width > innerWidth ? event.clientX - box.width - 16 : event.clientX + 16;
  tip.style.left = Math.max(4, left) + "px";
  tip.style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - box.height - 4)) + "px";
}

const hideTip = () => { tip.hidden = true; };

/**
 * plan() says what to draw: {x: {low, high, label, names}, y: {low, high, label, log, percent}, describe, layers(scale)}.
 * It is asked again whenever the size or the state has changed.
 */
function chart(figure, plan, pointed, pressed) {
  const margin = { top: 14, right: 14, bottom: 42, left: 48 };
  let scale = null, over = null;
  function draw() {
    const width = figure.clientWidth, height = figure.clientHeight;
    if (!width || !height) return;
    const { x, y, describe, layers } = plan();
    const inner = { left: margin.left, right: width - margin.right, top: margin.top, bottom: height - margin.bottom };
    const across = (value) => inner.left + ((value - x.low) / (x.high - x.low)) * (inner.right - inner.left);
    const share = y.log
      ? (value) => (Math.log(Math.max(value, y.low)) - Math.log(y.low)) / (Math.log(y.high) - Math.log(y.low))
      : (value) => (value - y.low) / (y.high - y.low);
    const up = (value) => inner.bottom - Math.min(1.02, Math.max(0, share(value))) * (inner.bottom - inner.top);
    const back = (pixel) => x.low + ((pixel - inner.left) / (inner.right - inner.left)) * (x.high - x.low);
    scale = { across, up, back, inner, x };
    const svg = drawn("svg", { role: "img", "aria-label": describe });
    for (const value of y.log ? logTicks(y.low, y.high) : ticks(y.low, y.high, 5)) {
      svg.append(drawn("line", { class: "grid", x1: inner.left, x2: inner.right, y1: up(value), y2: up(value) }));
      svg.append(drawn("text", { x: inner.left - 8, y: up(value) + 4, "text-anchor": "end" },
        short(value) + (y.percent ? " %" : "")));
    }
    const marks = x.names ? x.names.map((_, k) => k) : ticks(x.low, x.high, Math.max(3, Math.min(10, width / 80)));
    const room = (inner.right - inner.left) / Math.max(1, marks.length - 1);
    marks.forEach((value) => {
      const name = x.names ? (room < 84 ? shortName(x.names[value]) : x.names[value]) : short(value);
      const end = x.names && value === marks.length - 1 ? "end" : x.names && value === 0 ? "start" : "middle";
      svg.append(drawn("line", { class: "axis", x1: across(value), x2: across(value), y1: inner.bottom, y2: inner.bottom + 4 }));
      svg.append(drawn("text", { x: across(value), y: inner.bottom + 18, "text-anchor": end }, name));
    });
    svg.append(drawn("line", { class: "axis", x1: inner.left, x2: inner.right, y1: inner.bottom, y2: inner.bottom }));
    svg.append(drawn("text", { x: (inner.left + inner.right) / 2, y: height - 4, "text-anchor": "middle" }, x.label));
    svg.append(...layers(scale));
    over = drawn("g");
    svg.append(over);
    figure.replaceChildren(svg);
  }
  function move(event) {
    if (!scale) return;
    const pixel = event.clientX - figure.getBoundingClientRect().left;
    const value = Math.min(scale.x.high, Math.max(scale.x.low, scale.back(pixel)));
    over.replaceChildren(...pointed(event, scale.x.names ? Math.round(value) : value, scale));
  }
  figure.addEventListener("pointermove", move);
  figure.addEventListener("pointerleave", () => { hideTip(); if (over) over.replaceChildren(); });
  if (pressed) {
    let held = false;
    const set = (event) => pressed(Math.min(scale.x.high, Math.max(0, scale.back(event.clientX - figure.getBoundingClientRect().left))));
    figure.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "mouse") { held = true; figure.setPointerCapture(event.pointerId); }
      set(event);
    });
    figure.addEventListener("pointermove", (event) => { if (held) set(event); });
    for (const end of ["pointerup", "pointercancel"]) figure.addEventListener(end, () => { held = false; });
  }
  new ResizeObserver(draw).observe(figure);
  redraws.push(draw);
  draw();
}

const redraws = [];
const shortName = (name) => name.replace("convolution", "conv").replace("linear", "lin");

function path(points) {
  return points.map(([x, y], k) => (k ? "L" : "M") + x.toFixed(1) + " " + y.toFixed(1)).join("");
}

function crosshair(scale, value, dots) {
  return [
    drawn("line", { class: "cross", x1: scale.across(value), x2: scale.across(value), y1: scale.inner.top, y2: scale.inner.bottom }),
    ...dots.map(([index, at, y]) => drawn("circle", { class: "dot " + colour(index), cx: scale.across(at), cy: scale.up(y), r: 4 })),
  ];
}

const visible = () => runs.map((run, index) => [run, index]).filter(([, index]) => !state.hidden.has(index));
