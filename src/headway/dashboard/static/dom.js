// Small helpers that every page uses.
export const $ = (id) => document.getElementById(id);

export function make(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function tell(text, wrong = false) {
  $("state").textContent = text;
  $("state").classList.toggle("wrong", wrong);
}

export async function ask(path, options = {}) {
  const answer = await fetch(path, options);
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.detail ?? `the server returned ${answer.status}`);
  return body;
}

export const number = (value) =>
  value === null || value === undefined ? "" :
  Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toExponential(2) : String(+value.toPrecision(4));

export function duration(seconds) {
  if (seconds === undefined || seconds === null) return "";
  const s = Math.round(seconds);
  if (s < 90) return `${s} s`;
  const minutes = Math.round(s / 60);
  if (minutes < 90) return `${minutes} min`;
  if (minutes < 2880) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.round(minutes / 1440)} days`;
}

export const ago = (unix) => (unix ? `${duration(Date.now() / 1000 - unix)} ago` : "");
export const size = (bytes) => {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (bytes < 1000) return `${bytes < 10 && unit !== "B" ? bytes.toFixed(1) : Math.round(bytes)} ${unit}`;
    bytes /= 1000;
  }
  return `${bytes.toFixed(1)} TB`;
};

export const stateOf = (state) => make("span", { className: state, textContent: state });

export function sure(question) {
  $("question").textContent = question;
  $("sure").showModal();
  return new Promise((answer) => $("sure").addEventListener("close", () => answer($("sure").returnValue === "yes"), { once: true }));
}

export function progressOf(progress) {
  if (!progress?.steps) return make("span");
  const bar = make("progress", { max: progress.steps, value: progress.step ?? 0 });
  bar.setAttribute("aria-label", `step ${progress.step} of ${progress.steps}`);
  const share = Math.round(100 * (progress.step ?? 0) / progress.steps);
  return make("span", { className: "progress" }, bar, make("small", { textContent: `${share} %` }));
}

export const money = (spent) =>
  spent?.usd === undefined || spent.usd === null ? "" :
  `$${spent.usd.toFixed(2)}${spent.budget_usd ? ` of $${spent.budget_usd.toFixed(2)}` : ""}`;

// A table, or anything else wide, that scrolls by itself: by keyboard too.
export function wide(label, child) {
  const node = make("div", { className: "scroll", tabIndex: 0 }, child);
  node.setAttribute("role", "region");
  node.setAttribute("aria-label", label);
  return node;
}

// What one looks for first, first.
const FIRST = ["loss", "score"];
const place = (name) => (FIRST.includes(name) ? FIRST.indexOf(name) : FIRST.length);
export const inOrder = (names) => [...names].sort((a, b) => place(a) - place(b) || a.localeCompare(b));
