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
let token = "";

const about = await fetch("/about").then((answer) => answer.json());
fields = about.inputs;
route = about.predict;
document.title = `${about.name}: try it`;
$("name").textContent = about.name;
$("told").textContent = [about.recipe, ...Object.entries(about.metrics ?? {}).slice(0, 4)
  .map(([name, value]) => `${name} ${Number(value).toPrecision(3)}`)].filter(Boolean).join(" · ");
$("inputs").append(...fields.map((field) => (field.kind === "picture" ? pictureInput(field) : textInput(field))));

function changed() {
  $("go").disabled = !fields.every((field) => !field.required || given.get(field.name));
}

function pictureInput(field) {
  const file = make("input", { type: "file", accept: "image/*", name: field.name });
  file.setAttribute("aria-label", field.summary);
  const shown = make("span", { textContent: `Drop ${field.summary} here, or choose one` });
  const box = make("label", { className: "drop" }, file, shown);
  const take = (chosen) => {
    if (!chosen) return;
    given.set(field.name, chosen);
    shown.replaceChildren(make("img", { src: URL.createObjectURL(chosen), alt: `${field.summary}: ${chosen.name}` }));
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
  tell("Asking …");
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
      tell("The server is busy: asking again …");
      await new Promise((done) => setTimeout(done, 1000 * Number(answer.headers.get("Retry-After") ?? 1)));
      continue;
    }
    if (answer.status === 401) {
      token = prompt("This server asks for its token") ?? "";
      if (token && tries < 5) continue;
    }
    const body = await answer.json();
    if (!answer.ok) throw new Error(body.detail ?? `The server answers ${answer.status}`);
    return body.predictions[0];
  }
}

function tell(text, wrong = false) {
  $("state").textContent = text;
  $("state").classList.toggle("wrong", wrong);
}

function show(answer) {
  const parts = [make("p", { className: "said", textContent: answer.text ?? "" })];
  if (answer.words) parts.push(...wordsOverPicture(answer.words));
  if (answer.saliency) parts.push(make("h3", { textContent: "Where it looked" }), overlay(firstPicture(), answer.saliency));
  if (answer.top) parts.push(bars(answer.top.map((each) => [each.label, each.probability])));
  if (answer.distribution) parts.push(make("h3", { textContent: "Grades" }), bars(Object.entries(answer.distribution)));
  if (answer.evidence) parts.push(facts(answer.evidence));
  if (answer.attention && answer.source) parts.push(matrix(answer.source, answer.target, answer.attention));
  if (answer.alternatives?.length > 1) {
    parts.push(make("h3", { textContent: "It also considered" }));
    parts.push(bars(answer.alternatives.map((each) => [each.text, each.probability])));
  }
  $("answer").replaceChildren(...parts);
  $("answer").hidden = false;
}

const firstPicture = () => [...given.values()].find((value) => value instanceof File);

function wordsOverPicture(words) {
  const picture = firstPicture();
  const maps = words.map((each) => each.attention);
  if (!picture || !maps.some(Boolean)) return [];
  const seen = overlay(picture, maps[0]);
  const buttons = words.map((each, number) => {
    const button = make("button", { type: "button", textContent: each.word });
    const choose = () => {
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
      paint(seen.querySelector("canvas"), maps[number]);
    };
    button.setAttribute("aria-pressed", String(number === 0));
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
  const most = Math.max(...map.flat(), 1e-9);
  context.clearRect(0, 0, canvas.width, canvas.height);
  map.forEach((row, y) => row.forEach((value, x) => {
    context.fillStyle = `rgba(${heat}, ${(0.75 * value) / most})`;
    context.fillRect(x, y, 1, 1);
  }));
}

function bars(rows) {
  const most = Math.max(...rows.map(([, value]) => value), 1e-9);
  return make("div", { className: "bars" }, ...rows.flatMap(([label, value]) => {
    const bar = make("i");
    bar.style.width = `${(100 * value) / most}%`;
    return [make("span", { textContent: label }), bar, make("span", { textContent: `${(100 * value).toFixed(1)} %` })];
  }));
}

function facts(evidence) {
  return make("dl", {}, ...Object.entries(evidence).flatMap(([name, value]) =>
    [make("dt", { textContent: name }), make("dd", { textContent: typeof value === "number" ? value.toPrecision(3) : value })]));
}

function matrix(source, target, weights) {
  const head = make("thead", {}, make("tr", {}, make("th"), ...source.map((word) => make("th", { textContent: word, scope: "col" }))));
  const rows = target.map((word, row) => make("tr", {}, make("th", { textContent: word, scope: "row" }),
    ...source.map((_, column) => {
      const cell = make("td", { title: `${word} ← ${source[column]}: ${(100 * weights[row][column]).toFixed(0)} %` });
      cell.style.background = `rgba(var(--heat), ${weights[row][column]})`;
      return cell;
    })));
  return make("div", { className: "scroll" }, make("table", { className: "matrix" }, head, make("tbody", {}, ...rows)));
}
