"use strict";
// Shows a question with two answers and the verdicts on them. All text is set as text. The only HTML that is set are
// the answers, which were rendered from Markdown and contain no HTML of their own.
const byId = (id) => document.getElementById(id);
const dataOf = (id) => JSON.parse(byId(id).textContent);
const names = dataOf("names");
const radios = [...document.querySelectorAll("input[name=question]")];
const [left, right] = [byId("left"), byId("right")];
let pair = [0, 1];

for (const part of document.querySelectorAll(".needs-script")) part.hidden = false;

const plotCriterion = byId("plot-criterion");
function showPlot() {
  for (const plot of document.querySelectorAll("figure")) {
    plot.hidden = plot.dataset.criterion !== plotCriterion.value;
  }
}
if (plotCriterion) {
  plotCriterion.addEventListener("change", showPlot);
  showPlot();
}

function add(parent, name, text, className) {
  const element = parent.appendChild(document.createElement(name));
  element.textContent = text;
  if (className) element.className = className;
  return element;
}

function showAnswer(side, condition, data) {
  byId(`${side}-name`).textContent = names.conditions[condition];
  const place = byId(`${side}-answer`);
  place.replaceChildren();
  if (!data.answers) add(place, "p", "This page does not include the answers to this question.", "empty");
  else if (data.answers[condition] !== null) place.innerHTML = data.answers[condition];
  else add(place, "p", `No answer. ${data.errors[condition] ?? ""}`, "empty");
}

// first and second: condition numbers, in ascending order. letters: see _question_blocks in report_page.py.
function showVerdicts(data, first, second) {
  const place = byId("verdicts");
  place.replaceChildren();
  const name = { a: names.conditions[first], b: names.conditions[second] };
  const won = { a: `${name.a} wins`, b: `${name.b} wins`, t: "Tie", x: "No verdict" };
  const judged = data.judged.filter((group) => group[0] === first && group[1] === second);
  for (const [, , criterion, letters, reasons] of judged.sort((one, other) => one[2] - other[2])) {
    const part = add(place, "article", "");
    add(part, "h4", names.criteria[criterion]);
    const verdicts = [...letters].map((letter) => letter.toLowerCase());
    const counts = [..."abtx"].map((kind) => [won[kind], verdicts.filter((verdict) => verdict === kind).length]);
    add(part, "p", counts.filter(([, n]) => n).map(([kind, n]) => `${kind}: ${n}`).join(" · "), "tally");
    const list = add(part, "ol", "");
    verdicts.forEach((verdict, n) => {
      const item = add(list, "li", "");
      add(item, "strong", won[verdict]);
      add(item, "span", ` (answer 1 was ${letters[n] === verdict ? name.a : name.b})`, "shown-first");
      if (reasons) add(item, "p", data.reasons[reasons[n]], "given");
    });
  }
  if (!judged.length) add(place, "p", "The judge did not compare these two answers.", "empty");
}

function show() {
  const chosen = radios.find((radio) => radio.checked);
  const data = dataOf(`question-${chosen.value}`);
  byId("question-text").textContent = chosen.nextSibling.textContent;
  showAnswer("left", pair[0], data);
  showAnswer("right", pair[1], data);
  showVerdicts(data, Math.min(...pair), Math.max(...pair));
}

// A condition is not compared with itself: choosing the condition of the other select swaps the two.
function choosePair(one, other) {
  if (one === other) [one, other] = one === pair[0] ? [pair[1], one] : [one, pair[0]];
  [left.value, right.value] = pair = [one, other];
  show();
}

function search() {
  const words = byId("search").value.toLowerCase().split(/\s+/);
  let found = 0;
  for (const radio of radios) {
    const text = radio.nextSibling.textContent.toLowerCase();
    radio.parentNode.hidden = !words.every((word) => text.includes(word));
    found += radio.parentNode.hidden ? 0 : 1;
  }
  byId("found").textContent = `${found.toLocaleString("en")} of ${radios.length.toLocaleString("en")} questions`;
}

if (byId("reader")) {
  for (const select of [left, right]) {
    select.addEventListener("change", () => choosePair(Number(left.value), Number(right.value)));
  }
  byId("search").addEventListener("input", search);
  for (const radio of radios) radio.addEventListener("change", show);
  for (const cell of document.querySelectorAll("td[data-pair]")) {
    cell.addEventListener("click", () => {
      choosePair(...cell.dataset.pair.split(" ").map(Number));
      left.scrollIntoView();
    });
  }
  show();
}
