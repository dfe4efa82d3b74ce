// The server as this page uses it. Addresses are relative, so that the page also works below a path of a proxy.

/** What went wrong, in words for people. `status` is 0 where no answer came. */
export class ApiError extends Error {
  constructor(message, status = 0, retryAfter = null) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

let key = '';
export const setKey = (value) => {
  key = value;
};

async function request(path, options = {}) {
  const headers = { ...(options.body && { 'content-type': 'application/json' }), ...(key && { authorization: `Bearer ${key}` }) };
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: 'no-store', credentials: 'same-origin' });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError('The server cannot be reached. Is it still running?');
  }
  if (!response.ok) throw await failure(response);
  return response;
}

async function failure(response) {
  const text = await response.text().catch(() => '');
  let message = '';
  try {
    message = JSON.parse(text).error?.message ?? '';
  } catch {
    // A proxy's page, say: the status must do.
  }
  const after = parseInt(response.headers.get('retry-after') ?? '', 10);
  return new ApiError(message || `The server answered ${response.status} ${response.statusText}`.trim(), response.status, after >= 0 ? after : null);
}

export async function models() {
  const list = await (await request('v1/models')).json();
  return list.data.map((model) => model.id);
}

/** How many requests run and wait. */
export async function load() {
  const { in_work: all = 0, waiting = 0 } = await (await request('ready')).json();
  return { running: Math.max(0, all - waiting), waiting };
}

/** The chunks of a streamed chat completion. */
export async function* chat(body, signal) {
  const response = await request('v1/chat/completions', {
    method: 'POST',
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  for await (const data of events(response.body)) {
    if (data === '[DONE]') return;
    let chunk;
    try {
      chunk = JSON.parse(data);
    } catch {
      throw new ApiError('The server sent something that is not JSON.');
    }
    if (chunk.error) throw new ApiError(chunk.error.message ?? 'The server broke the answer off.', chunk.error.status ?? 500);
    yield chunk;
  }
  throw new ApiError('The connection was lost before the answer was complete.');
}

/** The data of server-sent events. */
export async function* events(stream) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let rest = '';
  let data = [];
  try {
    for (;;) {
      let part;
      try {
        part = await reader.read();
      } catch (error) {
        if (error.name === 'AbortError') throw error;
        throw new ApiError('The connection was lost before the answer was complete.');
      }
      rest += part.done ? decoder.decode() : decoder.decode(part.value, { stream: true });
      // A carriage return at the end may be half of a line's end.
      const lines = rest.split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === '' && data.length) {
          yield data.join('\n');
          data = [];
        } else if (line.startsWith('data:')) {
          data.push(line.slice(line[5] === ' ' ? 6 : 5));
        }
      }
      if (part.done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
