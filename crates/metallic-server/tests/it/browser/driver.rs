//! A browser without a screen, driven through chromedriver by the plain WebDriver protocol.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);
const ARGUMENTS: [&str; 9] = [
    "--headless=new",
    // Tests run as root in containers, where the browser's own sandbox does not start.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--window-size=1100,800",
];

/// Keys that are no characters, as WebDriver writes them.
pub(crate) mod key {
    pub(crate) const ENTER: &str = "\u{e007}";
    pub(crate) const SHIFT: &str = "\u{e008}";
    pub(crate) const CONTROL: &str = "\u{e009}";
    pub(crate) const ESCAPE: &str = "\u{e00c}";
    pub(crate) const UP: &str = "\u{e013}";
}

/// A browser with one empty profile of its own; both end with this value.
pub(crate) struct Browser {
    driver: Child,
    port: u16,
    session: String,
}

impl Browser {
    /// Starts one, if there is one.
    pub(crate) fn start() -> Result<Self, String> {
        let driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("chromedriver, and with it the web page: {error}"))?;
        let mut browser = Self { driver, port: 0, session: String::new() };
        let mut lines = BufReader::new(browser.driver.stdout.take().expect("it is piped"));
        let mut line = String::new();
        while browser.port == 0 {
            line.clear();
            assert!(lines.read_line(&mut line).unwrap() > 0, "chromedriver ended before it said its port");
            let said = line.split_once("on port ").map_or("", |(_, port)| port.trim());
            browser.port = said.trim_end_matches('.').parse().unwrap_or(0);
        }
        // Nobody reads what else it says, and it must not wait for that.
        thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        let wanted = json!({"capabilities": {"alwaysMatch": {"goog:chromeOptions": {"args": ARGUMENTS}}}});
        let session = browser.ask("POST", "/session", &wanted);
        browser.session = format!("/session/{}", session["sessionId"].as_str().expect("a session"));
        Ok(browser)
    }

    /// Opens a page of ours and waits until it is ready.
    pub(crate) fn open(&self, address: &str) {
        self.command("/url", &json!({"url": address}));
        self.wait("the page is ready", "return 'ready' in document.documentElement.dataset");
    }

    pub(crate) fn reload(&self) {
        self.command("/refresh", &json!({}));
        self.wait("the page is ready", "return 'ready' in document.documentElement.dataset");
    }

    /// What a script returns.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.command("/execute/sync", &json!({"script": script, "args": []}))
    }

    /// What a script hands to its last argument.
    pub(crate) fn run_async(&self, script: &str) -> Value {
        self.command("/execute/async", &json!({"script": script, "args": []}))
    }

    pub(crate) fn text(&self, script: &str) -> String {
        let value = self.run(script);
        value.as_str().unwrap_or_else(|| panic!("`{script}` gives {value}")).to_owned()
    }

    /// Waits until a script returns something true; `what` is said where it never does.
    pub(crate) fn wait(&self, what: &str, script: &str) -> Value {
        let begun = Instant::now();
        loop {
            let value = self.run(script);
            if !matches!(&value, Value::Null | Value::Bool(false)) && value != json!(0) && value != json!("")
            {
                return value;
            }
            let page = || self.run("return document.body.innerText");
            assert!(begun.elapsed() < PATIENCE, "never: {what}. The page: {}", page());
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn click(&self, selector: &str) {
        let element = self.find(selector);
        self.command(&format!("/element/{element}/click"), &json!({}));
    }

    /// Types into an element, key by key.
    pub(crate) fn type_into(&self, selector: &str, keys: &str) {
        let element = self.find(selector);
        self.command(&format!("/element/{element}/value"), &json!({"text": keys}));
    }

    pub(crate) fn resize(&self, width: u32, height: u32) {
        self.command("/window/rect", &json!({"width": width, "height": height}));
    }

    fn find(&self, selector: &str) -> String {
        let found = self.command("/element", &json!({"using": "css selector", "value": selector}));
        let id = found.as_object().and_then(|found| found.values().next()).and_then(Value::as_str);
        id.unwrap_or_else(|| panic!("there is no {selector}")).to_owned()
    }

    fn command(&self, path: &str, body: &Value) -> Value {
        self.ask("POST", &format!("{}{path}", self.session), body)
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let (status, answer) =
            self.exchange(method, path, body).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(status == 200, "{path} {body}: {answer}");
        answer["value"].clone()
    }

    fn exchange(&self, method: &str, path: &str, body: &Value) -> std::io::Result<(u16, Value)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let body = body.to_string();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            self.port,
            body.len()
        )?;
        let mut lines = BufReader::new(stream);
        let mut line = String::new();
        lines.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let mut length = 0;
        while line != "\r\n" {
            line.clear();
            if lines.read_line(&mut line)? == 0 {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().unwrap_or(0);
            }
        }
        let mut answer = vec![0; length];
        lines.read_exact(&mut answer)?;
        Ok((status, serde_json::from_slice(&answer)?))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ends the browser and removes its profile; the driver ends with or without it.
        if !self.session.is_empty() {
            drop(self.exchange("DELETE", &self.session, &json!({})));
        }
        drop(self.driver.kill());
        drop(self.driver.wait());
    }
}
