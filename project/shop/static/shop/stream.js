// Shows in the element [data-stream] what a step emits, word by word, and at last what it has returned. Without this
// module the page shows the result when the run has ended.

const text = document.querySelector("[data-stream]");
const stream = new EventSource(text.dataset.stream);

stream.addEventListener("chunk", (event) => text.append(`${JSON.parse(event.data).value} `));
stream.addEventListener("restart", () => text.replaceChildren()); // another attempt writes it anew
stream.addEventListener("result", (event) => end(JSON.parse(event.data).value));
stream.addEventListener("failed", () => end(""));

function end(result) {
  text.textContent = result;
  stream.close();
}
