//! The page in a real browser.

mod driver;
mod scripted;

use std::future;
use std::thread;
use std::time::{Duration, Instant};

use driver::{Browser, key};
use metallic::{ChatTemplate, Device, Llm, LoadOptions};
use metallic_server::{Models, Server, ServerOptions, serve};
use metallic_testkit::{data, needed};
use scripted::Scripted;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::support::{TEMPLATE, llm, runtime};

const IDLE: &str = "return document.querySelector('.message.assistant') && !document.querySelector('.busy')";
const LAST: &str = "return document.querySelector('.message:last-child > .text').innerText";
const QUESTIONS: &str = "return [...document.querySelectorAll('.user .text')].map((each) => each.innerText)";
const TITLES: &str = "return [...document.querySelectorAll('#list .open')].map((each) => each.innerText)";
const COUNTS: &str = "return [...document.querySelectorAll('.count')].map((each) => each.innerText)";

/// The page of a scripted server, in a browser; `None` where there is no browser.
fn scripted() -> Option<(Scripted, Browser)> {
    let browser = needed(Browser::start())?;
    let server = Scripted::start();
    browser.open(&server.page());
    Some((server, browser))
}

impl Browser {
    fn ask_for(&self, question: &str) {
        self.type_into("#input", &format!("{question}{}", key::ENTER));
    }

    /// Asks, and gives the whole answer.
    fn answer(&self, question: &str) -> String {
        self.ask_for(question);
        let asked = format!(
            "return [...document.querySelectorAll('.user .text')].at(-1)?.innerText === {}",
            Value::from(question)
        );
        self.wait("the question is shown", &asked);
        self.last()
    }

    /// The last answer, when it is whole.
    fn last(&self) -> String {
        self.wait("the answer ends", IDLE);
        self.text("return [...document.querySelectorAll('.message.assistant > .text')].at(-1).innerText")
    }
}

/// A server with the tiny model as it should be, and as the formulas have it: slow enough to be stopped on the way.
fn real() -> String {
    let path = data::own().join("stories260K/stories260K-f32.gguf");
    let naive = Llm::load_with(path, &LoadOptions::default().device(Device::Reference)).unwrap();
    let template = ChatTemplate::for_tokenizer(TEMPLATE, naive.tokenizer()).unwrap();
    let models =
        Models::new().add("quick", llm()).unwrap().add("naive", naive.with_template(template)).unwrap();
    let server = Server::new(models, ServerOptions::default()).unwrap();
    let listener = runtime().block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    runtime().spawn(serve(listener, server, future::pending()));
    format!("http://{address}/")
}

#[test]
fn a_model_answers_on_the_page_of_its_server() {
    let Some(page) = needed(Browser::start()) else { return };
    page.open(&real());
    page.run(
        "localStorage.setItem('metallic.sampling', '{\"temperature\": 0, \"max_completion_tokens\": 300}')",
    );
    page.reload();
    let story = page.answer("Once upon a time");
    assert!(story.split(' ').count() > 50, "{story}");
    let stats = page.text("return document.querySelector('.stats').innerText");
    assert!(stats.contains(" tokens/s · first after "), "{stats}");
    page.click(".message:last-child .again");
    page.wait("the answer is made again", "return document.querySelector('.count')");
    assert_eq!(page.last(), story, "the most likely story is the same again");
    page.reload();
    assert_eq!(page.last(), story);
    assert_eq!(page.run(QUESTIONS), json!(["Once upon a time"]));

    page.type_into("body", &format!("{}k{0}", key::CONTROL));
    page.run("document.getElementById('model').value = 'naive'");
    page.ask_for("Once upon a time");
    page.wait("an answer begins", "return document.querySelector('.busy.begun')");
    page.type_into("#input", key::ESCAPE);
    let stopped = page.last();
    assert!(story.starts_with(&stopped) && stopped.len() < story.len(), "{stopped}");
    let idle = "const done = arguments[0]; fetch('ready').then((got) => got.json()).then((got) => done(got.in_work))";
    let begun = Instant::now();
    while page.run_async(idle) != 0 {
        assert!(
            begun.elapsed() < Duration::from_secs(10),
            "the server still works on an answer that nobody wants"
        );
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_answer_streams_and_stops_when_it_is_told_to() {
    let Some((server, page)) = scripted() else { return };
    for stop in ["the button", "a key"] {
        page.ask_for("slow please");
        page.wait("an answer begins", "return document.querySelector('.busy.begun')");
        let early = page.text(LAST);
        page.wait(
            "tokens are counted",
            "return /tokens\\/s/.test(document.querySelector('.busy .stats').innerText)",
        );
        let words = |least: usize| {
            format!("return document.querySelector('.busy > .text').innerText.length > {least}")
        };
        page.wait("the answer grows", &words(early.len() + 20));
        assert_eq!(page.run("return document.activeElement.id"), "input", "one can go on typing");
        let left = server.left();
        match stop {
            "a key" => page.type_into("#input", key::ESCAPE),
            _ => page.click("#stop"),
        }
        let stopped = page.last();
        assert!(stopped.len() < 4000, "{stop}: it was stopped on the way");
        assert!(
            page.text("return [...document.querySelectorAll('.stats')].at(-1).innerText")
                .ends_with("stopped")
        );
        let begun = Instant::now();
        while server.left() == left {
            assert!(begun.elapsed() < Duration::from_secs(10), "{stop}: the server was not told");
            thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(page.last(), stopped, "nothing follows");
    }
    assert!(page.answer("quick").starts_with("5 messages"), "the conversation goes on");
    let stats = page.text("return [...document.querySelectorAll('.stats')].at(-1).innerText");
    assert!(stats.contains("1234 tokens") && stats.contains("first after "), "the server's count: {stats}");
}

#[test]
fn answers_are_made_again_and_questions_edited_without_losing_what_was() {
    let Some((server, page)) = scripted() else { return };
    assert_eq!(page.answer("one"), "1 messages, asked 1 times: one");
    assert_eq!(page.answer("two"), "3 messages, asked 1 times: two");
    page.click(".message:last-child .again");
    page.wait("the answer is made again", "return document.querySelector('.count')");
    assert_eq!(page.last(), "3 messages, asked 2 times: two");
    assert_eq!(page.run(COUNTS), json!(["2/2"]));

    // The key that edits takes the last question; a new line does not send it.
    page.type_into("#input", key::UP);
    page.type_into(".editor textarea", &format!(" and{}{}{}more", key::SHIFT, key::ENTER, key::SHIFT));
    page.type_into(".editor textarea", key::ENTER);
    page.wait("the edited question is shown", "return !document.querySelector('.editor')");
    assert_eq!(page.last(), "3 messages, asked 1 times: two and\nmore");
    assert_eq!(page.run(QUESTIONS), json!(["one", "two and\nmore"]));
    let asked: Vec<Value> =
        server.last()["messages"].as_array().unwrap().iter().map(|m| m["role"].clone()).collect();
    assert_eq!(asked, ["user", "assistant", "user"]);

    // The first question leads another way: neither of the second ones belongs to it.
    page.click(".message.user [aria-label=Edit]");
    page.type_into(".editor textarea", &format!("!{}", key::ENTER));
    page.wait("the branch is shown", "return document.querySelectorAll('.message').length === 2");
    assert_eq!(page.last(), "1 messages, asked 1 times: one!");
    page.click(".message.user [aria-label='Earlier version']");
    page.wait("the other way is back", "return document.querySelectorAll('.message').length === 4");
    assert_eq!(page.run(QUESTIONS), json!(["one", "two and\nmore"]));

    page.reload();
    assert_eq!(page.run(QUESTIONS), json!(["one", "two and\nmore"]));
    assert_eq!(page.run(COUNTS), json!(["1/2", "2/2"]));
}

#[test]
fn conversations_outlive_the_page() {
    let Some((server, page)) = scripted() else { return };
    page.answer("first question");
    page.type_into("body", &format!("{}k{0}", key::CONTROL));
    page.wait("a new chat", "return !document.querySelector('.message')");
    assert!(page.answer("second question").starts_with("1 messages"), "it knows nothing of the first");
    assert_eq!(page.run(TITLES), json!(["second question", "first question"]));

    page.click("#list li:last-child .open");
    page.wait(
        "the first is shown",
        "return document.querySelector('.user .text').innerText === 'first question'",
    );
    page.click("#list li:last-child [aria-label=Rename]");
    page.run("document.querySelector('#list input').select()");
    page.type_into("#list input", &format!("named{}", key::ENTER));
    page.wait("the name is shown", "return document.querySelector('#list').innerText.includes('named')");

    // What had come of an answer is there after the page was closed on it.
    page.ask_for("slow one");
    page.wait("an answer begins", "return document.querySelector('.busy.begun')");
    thread::sleep(Duration::from_millis(1500));
    page.reload();
    assert_eq!(page.run(TITLES), json!(["second question", "named"]));
    assert_eq!(page.run(QUESTIONS), json!(["first question", "slow one"]));
    assert!(page.last().starts_with("word word"), "{}", page.last());

    page.click("#list li:last-child [aria-label=Delete]");
    page.wait("it is gone", "return document.querySelectorAll('#list li').length === 1");
    page.click("#toast button");
    page.wait("it is back", "return document.querySelectorAll('#list li').length === 2");
    assert_eq!(page.run("return document.querySelectorAll('.message').length"), 0, "a new chat is open");

    // Two conversations answer at once, and the one that is not looked at goes on.
    page.ask_for("slow third");
    page.wait("an answer begins", "return document.querySelector('.busy.begun')");
    page.click("#list li:nth-child(2) .open");
    assert!(page.answer("meanwhile").contains("meanwhile"));
    page.wait("the other is marked", "return document.querySelectorAll('#list .running').length === 1");
    page.click("#list li:first-child .open");
    page.wait("it still grows", "return document.querySelector('.busy > .text')?.innerText.length > 100");
    page.click("#stop");
    page.last();
    assert!(server.left() >= 1);
}

#[test]
fn what_goes_wrong_is_said_and_can_be_tried_again() {
    let Some((_server, page)) = scripted() else { return };
    let error = "return document.querySelector('.message:last-child .error span')?.innerText";

    page.ask_for("full");
    let notice = page.wait("the queue is told", "return document.getElementById('notice').innerText");
    assert_eq!(notice, "The server is full. Asking again in 1 s …");
    assert_eq!(page.last(), "1 messages, asked 2 times: full");
    assert_eq!(page.run("return document.getElementById('notice').innerText"), "");

    page.ask_for("wrong");
    assert_eq!(page.wait("the error is shown", error), "`top_k` is -3, it must be 0 or more");
    page.ask_for("lost");
    let lost = "return document.querySelector('.message:last-child .error span')?.innerText.startsWith('The connection')";
    page.wait("the error is shown", lost);
    assert_eq!(page.last(), "4 message", "what came is kept");
    page.click(".message:last-child .error button");
    page.wait(
        "it was tried again",
        "return document.querySelector('.message:last-child .count')?.innerText === '2/2'",
    );
    page.last();

    page.ask_for("locked");
    page.wait("the key is asked for", "return document.getElementById('settings').open");
    assert_eq!(page.run("return document.activeElement.id"), "key");
    page.type_into("#key", &format!("secret{}", key::ENTER));
    page.wait("the settings are closed", "return !document.getElementById('settings').open");
    page.click(".message:last-child .error button");
    page.wait(
        "it was tried again",
        "return document.querySelector('.message:last-child .count')?.innerText === '2/2'",
    );
    assert!(page.last().ends_with("locked"));
    let kept = "return [sessionStorage.getItem('metallic.key'), localStorage.getItem('metallic.key')]";
    assert_eq!(page.run(kept), json!(["secret", null]), "the key ends with the browser");
}

#[test]
fn what_a_model_writes_stays_text() {
    let Some((_server, page)) = scripted() else { return };
    page.answer("hostile <img src=x onerror=window.hacked=11>");
    page.reload();
    let shown = page.last();
    assert!(shown.starts_with("<script>window.hacked = 1</script>"), "{shown}");
    assert!(shown.contains("[a](javascript:window.hacked=3)") && shown.contains("<style>"), "{shown}");
    page.run("for (const link of document.querySelectorAll('.text a')) link.removeAttribute('target');");
    let found = page.run(
        "return [window.hacked ?? null, document.querySelectorAll('#messages :is(script, img, iframe, style, object)').length,
                 [...document.querySelectorAll('.text a')].map((link) => link.protocol + link.rel.split(' ')[0])]",
    );
    assert_eq!(found, json!([null, 0, ["https:noopener", "https:noopener"]]));
    // The browser itself would refuse, were the page's code ever to try.
    let refused = page.run(
        "try { document.createElement('div').innerHTML = '<b>x</b>'; return false; } catch (error) { return error.name; }",
    );
    assert_eq!(refused, "TypeError");
}

#[test]
fn settings_reach_the_server_and_nothing_else_does() {
    let Some((server, page)) = scripted() else { return };
    page.answer("plain");
    let mut fields: Vec<String> = server.last().as_object().unwrap().keys().cloned().collect();
    fields.sort();
    assert_eq!(fields, ["messages", "model", "stream", "stream_options"], "what is not set is the server's");

    page.run("const model = document.getElementById('model'); model.value = 'second'; model.dispatchEvent(new Event('change'))");
    page.click("#open-settings");
    page.type_into("#system", "Be brief.");
    page.type_into("[name=temperature]", "0.5");
    page.type_into("[name=top_k]", "7");
    page.type_into("[name=seed]", &format!("11{}", key::ENTER));
    page.wait("the settings are closed", "return !document.getElementById('settings').open");
    page.answer("set");
    let sent = server.last();
    assert_eq!(sent["messages"][0], json!({"role": "system", "content": "Be brief."}));
    assert_eq!(
        (&sent["model"], &sent["temperature"], &sent["top_k"], &sent["seed"]),
        (&json!("second"), &json!(0.5), &json!(7), &json!(11))
    );

    page.reload();
    page.answer("again");
    assert_eq!(
        (&server.last()["model"], &server.last()["seed"]),
        (&json!("second"), &json!(11)),
        "they are kept"
    );
    assert_eq!(page.text("return document.getElementById('queue').innerText"), "3 running · 2 waiting");

    let reasoning = "return document.querySelector('.message:last-child .reasoning .text').textContent";
    assert!(page.answer("think").ends_with("think"));
    assert_eq!(page.text(reasoning), "Let me think.");
    assert_eq!(page.run("return document.querySelector('.message:last-child .reasoning').open"), false);
}

#[test]
fn the_page_fits_narrow_windows_and_both_colours() {
    let Some((_server, page)) = scripted() else { return };
    let back = "return getComputedStyle(document.body).backgroundColor";
    let first = page.text(back);
    page.click("#theme");
    let second = page.text(back);
    assert_ne!(first, second);
    page.reload();
    assert_eq!(page.text(back), second, "the choice is kept");

    page.answer("hostile");
    page.answer(&format!("wide {}", "x".repeat(300)));
    for width in [1100, 700, 500, 360] {
        page.resize(width, 700);
        page.wait("the window has its width", &format!("return innerWidth === {width}"));
        let spill = page.run(
            "const wide = (id) => { const e = id ? document.getElementById(id) : document.scrollingElement; return e.scrollWidth - e.clientWidth; };
             return [wide(''), wide('scroll'), wide('main'), innerWidth]",
        );
        assert_eq!(spill, json!([0, 0, 0, width]));
    }
    let list = |state: &str| {
        let is = format!("return getComputedStyle(document.getElementById('side')).visibility === '{state}'");
        page.wait(&format!("the list is {state}"), &is);
    };
    list("hidden");
    page.click("#open-side");
    list("visible");
    page.type_into("#new", key::ESCAPE);
    list("hidden");

    // The end is followed, unless one has scrolled up to read.
    page.ask_for("slow");
    page.wait("the answer is long", "return document.querySelector('.busy > .text')?.innerText.length > 300");
    let from_end =
        "const s = document.getElementById('scroll'); return s.scrollHeight - s.clientHeight - s.scrollTop";
    assert!(page.run(from_end).as_f64().unwrap() < 40.0);
    page.run("document.getElementById('scroll').scrollTop = 0");
    thread::sleep(Duration::from_millis(300));
    assert_eq!(page.run("return document.getElementById('scroll').scrollTop"), 0);
    page.click("#to-end");
    page.wait("the end is shown", "const s = document.getElementById('scroll'); return s.scrollHeight - s.clientHeight - s.scrollTop < 40");
}

#[test]
fn markdown_streams_into_the_nodes_that_it_becomes_at_once() {
    let Some((_server, page)) = scripted() else { return };
    let wrong = page.run_async(include_str!("markdown.js"));
    assert_eq!(wrong, json!([]), "{wrong:#}");
}
