// Messages as elements. What a click means is the business of app.js, which hands its functions in as `act`.

import { h, iconButton, seconds } from './dom.js';
import { Streaming } from './markdown.js';
import { siblings } from './store.js';

export class MessageView {
  constructor(conversation, node, act) {
    this.node = node;
    this.text = h('div', { class: 'text' });
    this.stats = h('span', { class: 'stats' });
    this.error = h('div', { class: 'error', role: 'alert', hidden: true });
    const user = node.role === 'user';
    const tools = h('div', { class: 'tools' });
    const others = siblings(conversation, node);
    if (others.length > 1) {
      const at = others.indexOf(node);
      const step = (name, label, to) => iconButton(name, label, () => act.show(others[to]), { disabled: !others[to] });
      tools.append(step('left', 'Earlier version', at - 1), h('span', { class: 'count' }, `${at + 1}/${others.length}`), step('right', 'Later version', at + 1));
    }
    tools.append(iconButton('copy', 'Copy', () => act.copy(node.content)));
    if (user) tools.append(iconButton('edit', 'Edit', () => act.edit(node)));
    else tools.append(iconButton('again', 'Answer again', () => act.again(node), { class: 'ghost again' }));
    this.element = h('article', { class: `message ${node.role}`, 'aria-label': user ? 'You' : 'Answer' });
    if (user) {
      this.text.textContent = node.content;
      this.element.append(this.text, tools);
      return;
    }
    this.thought = h('div', { class: 'text' });
    this.thinking = h('details', { class: 'reasoning', hidden: true }, h('summary', {}, 'Reasoning'), this.thought);
    this.streams = { content: new Streaming(this.text), reasoning: new Streaming(this.thought) };
    this.element.append(this.thinking, this.text, this.error, h('div', { class: 'under' }, tools, this.stats));
    this.update(!act.running(node), act.again);
  }

  /** Shows what the message has by now; `done`: no more will come. */
  update(done, retry) {
    const { content, reasoning, error } = this.node;
    if (reasoning && (done || !content)) {
      this.thinking.hidden = false;
      this.streams.reasoning.update(reasoning, done || Boolean(content));
    }
    this.thinking.firstChild.textContent = reasoning && !content && !done ? 'Reasoning …' : 'Reasoning';
    this.streams.content.update(content, done);
    this.element.classList.toggle('busy', !done);
    this.element.classList.toggle('begun', Boolean(content || reasoning));
    this.error.hidden = !error;
    if (error) this.error.replaceChildren(h('span', {}, error), h('button', { type: 'button', onclick: () => retry?.(this.node) }, 'Try again'));
    this.updateStats(done);
  }

  updateStats(done) {
    const { stats, finish, model } = this.node;
    if (!stats) return;
    const parts = [];
    if (stats.first !== undefined) {
      if (stats.rate) parts.push(`${stats.rate.toFixed(1)} tokens/s`);
      parts.push(`first after ${seconds(stats.first)}`, `${stats.tokens} token${stats.tokens === 1 ? '' : 's'}`);
    } else if (!done) {
      parts.push(stats.waited === undefined ? 'waiting' : `waiting ${seconds(stats.waited)}`);
    }
    if (done && finish === 'length') parts.push('cut off: most tokens reached');
    if (done && finish === 'stopped') parts.push('stopped');
    this.stats.textContent = parts.join(' · ');
    this.stats.title = model ?? '';
  }

  /** Puts a field in place of a user's message; `save` gets the new text. */
  edit(save, cancel) {
    const field = h('textarea', { value: this.node.content, 'aria-label': 'Edit the message' });
    const submit = () => field.value.trim() && save(field.value.trim());
    const form = h('form', { class: 'editor', onsubmit: (event) => (event.preventDefault(), submit()) },
      field,
      h('div', { class: 'row' },
        h('span', { class: 'stats' }, 'What followed stays, as another version.'),
        h('button', { type: 'button', class: 'quiet', onclick: cancel }, 'Cancel'),
        h('button', { type: 'submit', class: 'primary' }, 'Send')));
    field.addEventListener('keydown', (event) => {
      if (event.isComposing) return;
      if (event.key === 'Escape') (event.stopPropagation(), cancel());
      if (event.key === 'Enter' && !event.shiftKey) (event.preventDefault(), submit());
    });
    this.element.replaceChildren(form);
    this.element.classList.add('editing');
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  }
}
