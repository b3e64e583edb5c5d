// All runs: search, pages, and boxes to choose some for comparison.
import { ago, ask, duration, make, money, number, progressOf, stateOf, tell, wide } from "./dom.js";

const PAGE = 100;
const chosen = new Set();

export function list(page) {
  let offset = 0, query = "", timer = 0, ended = false;
  const search = make("input", { type: "search", placeholder: "name, state, target …", id: "search" });
  search.setAttribute("aria-label", "Search runs");
  const compare = make("button", { type: "button", textContent: "Compare", disabled: true });
  const before = make("button", { type: "button", textContent: "Newer" });
  const after = make("button", { type: "button", textContent: "Older" });
  const count = make("span");
  const body = make("tbody");
  const heads = ["", "run", "state", "on", "progress", "time left", "cost", "best", "started"];
  const table = make("table", {}, make("thead", {}, make("tr", {}, ...heads.map((text) => make("th", { scope: "col" }, text || make("span", { className: "unseen", textContent: "choose" }))))), body);
  page.replaceChildren(make("h1", { textContent: "Runs" }), make("div", { className: "bar" }, search, compare, before, after, count),
    wide("Runs", table));

  const marked = () => { compare.disabled = chosen.size < 2; compare.textContent = chosen.size ? `Compare ${chosen.size}` : "Compare"; };
  compare.addEventListener("click", () => { location.hash = `#/compare/${[...chosen].join(",")}`; });
  before.addEventListener("click", () => { offset = Math.max(0, offset - PAGE); load(); });
  after.addEventListener("click", () => { offset += PAGE; load(); });
  search.addEventListener("input", () => { query = search.value; offset = 0; clearTimeout(timer); timer = setTimeout(load, 150); });

  async function load() {
    try {
      const found = await ask(`/api/runs?${new URLSearchParams({ q: query, offset, limit: PAGE })}`);
      if (ended) return;
      count.textContent = found.total ? `${offset + 1}–${offset + found.runs.length} of ${found.total.toLocaleString()}` : "no runs";
      before.disabled = offset === 0;
      after.disabled = offset + PAGE >= found.total;
      body.replaceChildren(...found.runs.map(row));
      marked();
      tell(found.looking.length ? `searching ${found.looking.join(", ")} …` : "");
    } catch (error) { tell(error.message, true); }
  }

  function row(run) {
    const box = make("input", { type: "checkbox", checked: chosen.has(run.id) });
    box.setAttribute("aria-label", `Choose ${run.name}`);
    box.addEventListener("change", () => { box.checked ? chosen.add(run.id) : chosen.delete(run.id); marked(); });
    const left = run.state === "running" ? duration(run.progress?.eta_s) : "";
    const cells = [box, make("a", { href: `#/run/${run.id}`, textContent: run.name }), stateOf(run.state), run.target,
      run.trouble ? make("span", { textContent: run.trouble }) : progressOf(run.progress), left, money(run.progress), number(run.best), ago(run.created)];
    return make("tr", {}, ...cells.map((cell) => make("td", {}, cell)));
  }

  load();
  const again = setInterval(() => { if (!document.hidden) load(); }, 5000);
  search.focus();
  return () => { ended = true; clearInterval(again); };
}
