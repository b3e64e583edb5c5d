// The try-out page: asks /about what the model takes, sends it, and draws whatever the answer holds.
const $ = (id) => document.getElementById(id);
const make = (tag, properties = {}, ...children) => {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
};

const given = new Map(); // field name -> File or text
let fields = [];
let route = "/predict";
let outputs = [];
let token = "";

const about = await fetch("/about").then((answer) => answer.json());
fields = about.inputs;
route = about.predict;
outputs = about.outputs ?? [];
$("go").textContent = about.verb ?? "Run";
document.title = `${about.name}: try it`;
$("name").textContent = about.name;
$("told").textContent = [about.recipe, ...Object.entries(about.metrics ?? {}).slice(0, 4)
  .map(([name, value]) => `${about.metric_names?.[name] ?? name} ${Number(value).toPrecision(3)}`)].filter(Boolean).join(" · ");
const inputs = { picture: fileInput, image: fileInput, audio: fileInput, number: numberInput, row: rowInput, tensor: jsonInput };
$("inputs").append(...fields.map((field) => (inputs[field.kind] ?? textInput)(field)));
changed();

function changed() {
  $("go").disabled = !fields.every((field) => !field.required || given.get(field.name));
}

function fileInput(field) {
  const sound = field.kind === "audio";
  const file = make("input", { type: "file", accept: sound ? "audio/wav" : "image/*", name: field.name });
  file.setAttribute("aria-label", field.summary);
  const shown = make("span", { textContent: `Drop ${field.summary} here, or choose one` });
  const box = make("label", { className: "drop" }, file, shown);
  const take = (chosen) => {
    if (!chosen) return;
    given.set(field.name, chosen);
    const src = URL.createObjectURL(chosen);
    shown.replaceChildren(sound ? make("audio", { src, controls: true }) : make("img", { src, alt: `${field.summary}: ${chosen.name}` }));
    changed();
    if (fields.every((each) => given.get(each.name) || !each.required)) $("ask").requestSubmit();
  };
  file.addEventListener("change", () => take(file.files[0]));
  for (const kind of ["dragenter", "dragover"]) {
    box.addEventListener(kind, (event) => { event.preventDefault(); box.classList.add("over"); });
  }
  for (const kind of ["dragleave", "drop"]) box.addEventListener(kind, () => box.classList.remove("over"));
  box.addEventListener("drop", (event) => { event.preventDefault(); take(event.dataTransfer.files[0]); });
  return box;
}

function labelled(field, ...nodes) {
  return make("label", { className: "text" }, field.summary + (field.required ? "" : " (optional)"), ...nodes);
}

function numberInput(field) {
  const input = make("input", { type: "number", step: "any", name: field.name, min: field.low ?? "", max: field.high ?? "" });
  input.addEventListener("input", () => { given.set(field.name, input.value); changed(); });
  return labelled(field, input, field.unit ?? "");
}

// A row of a table: an input for each column.
function rowInput(field) {
  const columns = Array.isArray(field.columns) ? Object.fromEntries(field.columns.map((name) => [name, "number"])) : field.columns;
  const cells = Object.entries(columns).map(([name, type]) => {
    const cell = Array.isArray(type)
      ? make("select", { name }, ...type.map((word) => make("option", { textContent: word })))
      : make("input", { name, type: type === "number" ? "number" : "text", step: "any" });
    return [name, type, cell];
  });
  const read = () => {
    const full = cells.every(([, , cell]) => cell.value !== "");
    const row = Object.fromEntries(cells.map(([name, type, cell]) => [name, type === "number" ? Number(cell.value) : cell.value]));
    given.set(field.name, full ? JSON.stringify(row) : "");
    changed();
  };
  for (const [, , cell] of cells) cell.addEventListener("input", read);
  const rows = cells.map(([name, , cell]) => make("label", { className: "cell" }, name, cell));
  const group = make("fieldset", { className: "row" }, make("legend", { textContent: field.summary }), ...rows);
  return group;
}

function jsonInput(field) {
  const area = make("textarea", { name: field.name, placeholder: "[[1, 2], [3, 4]]" });
  area.addEventListener("input", () => { given.set(field.name, area.value.trim()); changed(); });
  return labelled(field, area);
}

function textInput(field) {
  const area = make("textarea", { name: field.name, maxLength: 5000 });
  area.addEventListener("input", () => { given.set(field.name, area.value.trim()); changed(); });
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); $("ask").requestSubmit(); }
  });
  return make("label", { className: "text" }, field.summary, area);
}

$("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  if ($("go").disabled) return;
  tell("Running …");
  $("go").disabled = true;
  try {
    const answer = await ask();
    show(answer);
    tell("");
  } catch (error) {
    tell(error.message, true);
  } finally {
    changed();
  }
});

async function ask() {
  const form = new FormData();
  for (const [name, value] of given) if (value) form.append(name, value);
  form.append("explain", "true");
  for (let tries = 0; ; tries++) {
    const answer = await fetch(route, { method: "POST", body: form, headers: token ? { Authorization: `Bearer ${token}` } : {} });
    if (answer.status === 429 && tries < 5) {
      tell("The server is busy, retrying …");
      await new Promise((done) => setTimeout(done, 1000 * Number(answer.headers.get("Retry-After") ?? 1)));
      continue;
    }
    if (answer.status === 401) {
      token = prompt("This server requires a token") ?? "";
      if (token && tries < 5) continue;
    }
    const body = await answer.json();
    if (!answer.ok) throw new Error(body.detail ?? `The server returned ${answer.status}`);
    return body.predictions[0];
  }
}

function tell(text, wrong = false) {
  $("state").textContent = text;
  $("state").classList.toggle("wrong", wrong);
}

function show(answer) {
  const parts = [make("p", { className: "said", textContent: answer.text || "(empty)" })];
  for (const output of outputs) parts.push(...drawn(output, answer[output.name]));
  if (answer.words) parts.push(...wordsOverPicture(answer.words));
  if (answer.saliency) parts.push(title("Where it looked"), overlay(firstPicture(), answer.saliency));
  if (answer.top) parts.push(title("Classes"), bars(answer.top.map((each) => [each.label, each.probability])));
  if (answer.distribution) parts.push(title("Grades"), bars(Object.entries(answer.distribution)));
  if (answer.evidence) parts.push(...evidence(answer.evidence));
  if (answer.attention && answer.source) {
    const told = "One row per output word, one column per input word: a stronger colour means more attention.";
    parts.push(title("Which words it looked at"), make("p", { className: "told", textContent: told }));
    parts.push(matrix(answer.source, answer.target, answer.attention));
  }
  if (answer.alternatives?.length > 1) {
    parts.push(title("What the search considered"));
    const likeliest = [...answer.alternatives].sort((one, other) => other.probability - one.probability);
    parts.push(bars(likeliest.map((each) => [each.text, each.probability]), { chosen: answer.text }));
  }
  $("answer").replaceChildren(...parts);
  $("answer").hidden = false;
}

// An output of a model, by its declared type. Numbers and texts are said above.
function drawn(output, value) {
  if (value === undefined || value === null) return [];
  const head = title(output.about || output.name);
  if (output.kind === "classes" || (output.kind === "ordinal" && value.probabilities)) return [head, bars(Object.entries(value.probabilities))];
  if (output.kind === "labels") return [head, bars(Object.entries(value), { whole: 1 })];
  if (output.kind === "picture") return [head, make("img", { src: value, alt: output.about || output.name, className: "made" })];
  if (output.kind === "caption" && value.words) return wordsOverPicture(value.words);
  if (output.kind === "boxes") return [head, boxed(value)];
  if (output.kind === "tensor") return [head, make("pre", { textContent: JSON.stringify(value).slice(0, 2000) })];
  return outputs.length > 1 && typeof value !== "object" ? [head, make("p", { textContent: `${value} ${output.unit ?? ""}` })] : [];
}

function boxed(boxes) {
  const picture = make("img", { src: URL.createObjectURL(firstPicture()), alt: "" });
  const around = make("div", { className: "boxed" }, picture);
  picture.addEventListener("load", () => {
    for (const { box: [left, top, right, bottom], label, score } of boxes) {
      const frame = make("div", { className: "frame", title: `${label} ${score === undefined ? "" : percent(score)}` }, make("span", { textContent: label }));
      const part = (value, whole) => `${(100 * value) / whole}%`;
      Object.assign(frame.style, { left: part(left, picture.naturalWidth), top: part(top, picture.naturalHeight),
        width: part(right - left, picture.naturalWidth), height: part(bottom - top, picture.naturalHeight) });
      around.append(frame);
    }
  });
  return around;
}

const title = (text) => make("h2", { textContent: text });
const firstPicture = () => [...given.values()].find((value) => value instanceof File);

function wordsOverPicture(words) {
  const picture = firstPicture();
  const maps = words.map((each) => each.attention);
  if (!picture || !maps.some(Boolean)) return [];
  // The word that it looked at one place for says the most: shown first.
  const sharp = maps.map((map) => (map ? Math.max(...map.flat()) : 0));
  const first = sharp.indexOf(Math.max(...sharp));
  const seen = overlay(picture, maps[first]);
  const buttons = words.map((each, number) => {
    const button = make("button", { type: "button", textContent: each.word });
    const choose = () => {
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
      if (maps[number]) paint(seen.querySelector("canvas"), maps[number]);
    };
    button.setAttribute("aria-pressed", String(number === first));
    for (const kind of ["click", "focus", "mouseenter"]) button.addEventListener(kind, choose);
    return button;
  });
  const group = make("div", { className: "words" }, ...buttons);
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", "Words: each shows where the model looked");
  return [group, seen];
}

function overlay(picture, map) {
  const canvas = make("canvas");
  canvas.setAttribute("aria-hidden", "true");
  const box = make("div", { className: "seen" }, make("img", { src: URL.createObjectURL(picture), alt: "" }), canvas);
  paint(canvas, map);
  return box;
}

function paint(canvas, map) {
  canvas.width = map[0].length;
  canvas.height = map.length;
  const context = canvas.getContext("2d");
  const heat = getComputedStyle(document.documentElement).getPropertyValue("--heat");
  const least = Math.min(...map.flat());
  const range = Math.max(...map.flat()) - least || 1; // a map that is even all over shows nothing
  context.clearRect(0, 0, canvas.width, canvas.height);
  map.forEach((row, y) => row.forEach((value, x) => {
    context.fillStyle = `rgba(${heat}, ${(0.7 * (value - least)) / range})`;
    context.fillRect(x, y, 1, 1);
  }));
}

function bars(rows, { whole = 0, chosen = "", show = percent } = {}) {
  const most = whole || Math.max(...rows.map(([, value]) => value), 1e-9);
  return make("div", { className: "bars" }, ...rows.flatMap(([label, value]) => {
    const bar = make("i");
    bar.style.width = `${(100 * Math.min(value, most)) / most}%`;
    return [make("span", { textContent: label, className: label === chosen ? "chosen" : "" }), bar, make("span", { textContent: show(value) })];
  }));
}

const percent = (value) => (value > 0 && value < 0.0005 ? "< 0.1 %" : `${(100 * value).toFixed(1)} %`);

// What was seen of each side, from 0 (none) to 1: a group of bars a side.
function evidence(found) {
  const sides = new Map();
  for (const [name, value] of Object.entries(found)) {
    const [side, what] = name.split(": ");
    sides.set(side, [...(sides.get(side) ?? []), [what, value]]);
  }
  const groups = [...sides].sort().reverse().map(([side, rows]) =>
    make("div", {}, make("h3", { textContent: side }), bars(rows, { whole: 1, show: (value) => value.toFixed(2) })));
  return [title("What was seen, from 0 to 1"), make("div", { className: "sides" }, ...groups)];
}

function matrix(source, target, weights) {
  const most = Math.max(...weights.flat(), 1e-9);
  const head = make("thead", {}, make("tr", {}, make("td"), ...source.map((word) => make("th", { textContent: word, scope: "col" }))));
  const rows = target.map((word, row) => make("tr", {}, make("th", { textContent: word, scope: "row" }),
    ...source.map((_, column) => {
      const cell = make("td", { title: `${word} ← ${source[column]}: ${(100 * weights[row][column]).toFixed(0)} %` });
      cell.style.background = `rgba(var(--heat), ${weights[row][column] / most})`;
      return cell;
    })));
  const box = make("div", { className: "scroll", tabIndex: 0 }, make("table", { className: "matrix" }, head, make("tbody", {}, ...rows)));
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", "Attention, word by word");
  return box;
}
