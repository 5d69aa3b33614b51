// The chat page: sends the conversation to /v1/chat/completions, shows the stream as text (never as HTML), and what the
// answer cost: time to the first token, tokens a second, and how much of the prompt was cached.

const $ = (id) => document.getElementById(id);
const messages = [];
let running = null;

$("key").value = sessionStorage.getItem("key") ?? "";
$("key").addEventListener("change", () => {
  sessionStorage.setItem("key", $("key").value);
  showModel();
});

function headers() {
  const key = $("key").value.trim();
  return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
}

async function showModel() {
  const answer = await fetch("/v1/models", { headers: headers() });
  const body = await answer.json();
  $("model").textContent = answer.ok ? body.data[0].id : body.error.message;
}

function show(role, text) {
  const article = document.createElement("article");
  article.className = role;
  article.textContent = text;
  $("conversation").append(article);
  article.scrollIntoView({ block: "end" });
  return article;
}

// Data of server-sent events, as they arrive.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let left = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (left + value).split("\n\n");
    left = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) yield part.slice(6);
  }
}

function request() {
  const system = $("system").value.trim();
  const body = {
    messages: system ? [{ role: "system", content: system }, ...messages] : messages,
    stream: true,
    stream_options: { include_usage: true },
  };
  if ($("temperature").value !== "") body.temperature = Number($("temperature").value);
  if ($("most").value !== "") body.max_tokens = Number($("most").value);
  return body;
}

function showFigures(usage, asked, first, last) {
  const generated = usage.completion_tokens;
  const figures = [`${generated} tokens`];
  if (first !== null) figures.push(`first after ${Math.round(first - asked)} ms`);
  if (generated > 1 && last > first) figures.push(`${((1000 * (generated - 1)) / (last - first)).toFixed(1)} tokens/s`);
  figures.push(`${usage.prompt_tokens} in the prompt, ${usage.prompt_tokens_details.cached_tokens} cached`);
  $("figures").textContent = figures.join(" · ");
}

async function answer() {
  running = new AbortController();
  const asked = performance.now();
  const article = show("assistant", "");
  let [first, last] = [null, asked];
  try {
    const response = await fetch("/v1/chat/completions", {
      method: "POST",
      headers: headers(),
      body: JSON.stringify(request()),
      signal: running.signal,
    });
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const data of events(response.body)) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      if (chunk.usage) showFigures(chunk.usage, asked, first, last);
      const text = chunk.choices[0]?.delta.content;
      if (!text) continue;
      last = performance.now();
      first ??= last;
      article.textContent += text;
      article.scrollIntoView({ block: "end" });
    }
    messages.push({ role: "assistant", content: article.textContent });
  } catch (error) {
    if (error.name === "AbortError") {
      messages.push({ role: "assistant", content: article.textContent });
    } else {
      if (!article.textContent) article.remove();
      messages.pop();
      show("error", error.message);
    }
  } finally {
    running = null;
    setRunning(false);
  }
}

function setRunning(yes) {
  $("send").disabled = yes;
  $("stop").hidden = !yes;
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("text").value.trim();
  if (!text || running) return;
  $("text").value = "";
  messages.push({ role: "user", content: text });
  show("user", text);
  setRunning(true);
  answer();
});
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("ask").requestSubmit();
  }
});
$("stop").addEventListener("click", () => running?.abort());
$("clear").addEventListener("click", () => {
  running?.abort();
  messages.length = 0;
  $("conversation").replaceChildren();
  $("figures").textContent = "";
});
showModel();
