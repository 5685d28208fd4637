// What everything else stands on: the data in the page, the state, elements of HTML and SVG, numbers as text.
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
  const digits = run && run.images > 1000 ? 2 : 1, scale = 10 ** digits;
  return (Math.floor(value * scale + 1e-6) / scale).toFixed(digits) + " %";
}

const floored = (value) => String(Math.floor(value * 1000) / 1000);
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
