// One answer under way: asks, waits where the server is full, counts, and writes into a message of the conversation.

import { ApiError, chat } from './api.js';

/** How often a full server is asked again. */
const ATTEMPTS = 20;

const pause = (ms, signal) =>
  new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener('abort', () => (clearTimeout(timer), reject(new DOMException('stopped', 'AbortError'))), { once: true });
  });

export class Answer {
  /** `watch.change` is called when there is more to show, `watch.wait(seconds)` while a full server is waited for. */
  constructor(conversation, node, watch) {
    Object.assign(this, { conversation, node, watch });
    this.abort = new AbortController();
    this.stopped = false;
  }

  stop() {
    this.stopped = true;
    this.abort.abort();
  }

  /** Runs to the end; what goes wrong is in the message afterwards. Returns the error, if any. */
  async run(body) {
    const { node } = this;
    delete node.error;
    try {
      for (let attempt = 1; ; attempt += 1) {
        try {
          await this.once(body);
          return null;
        } catch (error) {
          if (error.status !== 429 || attempt === ATTEMPTS || node.content || node.reasoning) throw error;
          await this.wait(error.retryAfter ?? Math.min(attempt, 5));
        }
      }
    } catch (error) {
      if (this.stopped) {
        node.finish = 'stopped';
        return null;
      }
      node.error = error instanceof ApiError ? error.message : `The page failed: ${error.message}`;
      return error;
    } finally {
      clearInterval(this.timer);
      this.watch.wait(0);
    }
  }

  async wait(seconds) {
    for (let left = Math.max(1, seconds); left > 0; left -= 1) {
      this.watch.wait(left);
      await pause(1000, this.abort.signal);
    }
    this.watch.wait(0);
  }

  async once(body) {
    const { node, watch } = this;
    const begun = performance.now();
    let first = 0;
    node.stats = { tokens: 0 };
    clearInterval(this.timer);
    this.timer = setInterval(() => {
      if (!first) node.stats.waited = performance.now() - begun;
      watch.change();
    }, 250);
    for await (const chunk of chat(body, this.abort.signal)) {
      const now = performance.now();
      const [choice] = chunk.choices ?? [];
      const { content, reasoning_content: reasoning } = choice?.delta ?? {};
      if (content || reasoning) {
        first ||= now;
        node.stats.first = first - begun;
        // A piece is a token, or nearly: the server's own count replaces it at the end.
        node.stats.tokens += 1;
        node.content += content ?? '';
        if (reasoning) node.reasoning = (node.reasoning ?? '') + reasoning;
        if (now > first) node.stats.rate = ((node.stats.tokens - 1) * 1000) / (now - first);
        this.last = now;
      }
      if (choice?.finish_reason) node.finish = choice.finish_reason;
      if (chunk.usage) {
        node.stats.tokens = chunk.usage.completion_tokens;
        node.stats.prompt = chunk.usage.prompt_tokens;
        if (this.last > first && node.stats.tokens > 1) node.stats.rate = ((node.stats.tokens - 1) * 1000) / (this.last - first);
      }
      watch.change();
    }
  }
}
