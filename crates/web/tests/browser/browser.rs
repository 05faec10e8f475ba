//! A browser without a window, and a server of its own for each test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use fantoccini::wd::{Capabilities, WebDriverCompatibleCommand};
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

/// A browser that ends with the test.
pub(crate) struct Browser {
    driver: Child,
    port: u16,
    /// What it leaves behind.
    folder: PathBuf,
    pub(crate) client: Client,
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Killed, the driver would leave the browser behind.
        if let Ok(mut driver) = TcpStream::connect(("127.0.0.1", self.port)) {
            let _ = driver.write_all(b"GET /shutdown HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
            let _ = driver.set_read_timeout(Some(Duration::from_secs(10)));
            let _ = driver.read_to_end(&mut Vec::new());
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A command of the driver that the library does not know.
#[derive(Debug)]
struct Other(&'static str, Value);

impl WebDriverCompatibleCommand for Other {
    fn endpoint(
        &self,
        base: &url::Url,
        session: Option<&str>,
    ) -> Result<url::Url, url::ParseError> {
        base.join(&format!(
            "session/{}/{}",
            session.unwrap_or_default(),
            self.0
        ))
    }

    fn method_and_body(&self, _: &url::Url) -> (axum::http::Method, Option<String>) {
        (axum::http::Method::POST, Some(self.1.to_string()))
    }
}

/// Starts the driver. Returns its port, unless it has ended at once.
fn driver(folder: &Path) -> Option<(Child, u16)> {
    let mut driver = Command::new("chromedriver")
        .arg("--port=0")
        .env("TMPDIR", folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("chromedriver starts");
    let mut lines = BufReader::new(driver.stdout.take().expect("its output")).lines();
    let port = lines.find_map(|line| {
        let line = line.expect("it is text");
        let (_, port) = line.split_once("started successfully on port ")?;
        port.trim_end_matches('.').parse().ok()
    });
    let Some(port) = port else {
        let _ = driver.wait();
        return None;
    };
    // Nobody reads what it says later.
    std::thread::spawn(move || lines.for_each(drop));
    Some((driver, port))
}

impl Browser {
    pub(crate) async fn open() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Relaxed: only the number matters.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("browser-{}-{number}", std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        // It takes a port that is free for one version of IP, and ends if another program has it for the other one.
        let mut tries = (0..5).filter_map(|_| driver(&folder));
        let (driver, port) = tries.next().expect("chromedriver says its port");
        let options = json!({
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1100,900"],
        });
        let mut capabilities = Capabilities::new();
        capabilities.insert("goog:chromeOptions".to_owned(), options);
        capabilities.insert("goog:loggingPrefs".to_owned(), json!({"browser": "ALL"}));
        let client = ClientBuilder::new(HttpConnector::new())
            .capabilities(capabilities)
            .connect(&format!("http://127.0.0.1:{port}"))
            .await
            .expect("a browser opens");
        Browser {
            driver,
            port,
            folder,
            client,
        }
    }

    /// Calls the browser by its own protocol.
    pub(crate) async fn devtools(&self, method: &str, parameters: Value) {
        let call = json!({"cmd": method, "params": parameters});
        let done = self.client.issue_cmd(Other("goog/cdp/execute", call)).await;
        done.expect("the browser does it");
    }

    /// What the browser has complained about since the last call: broken scripts, refused styles.
    pub(crate) async fn complaints(&self) -> Vec<String> {
        let log = self
            .client
            .issue_cmd(Other("se/log", json!({"type": "browser"})))
            .await;
        let log = log.expect("a log");
        let lines = log.as_array().expect("a list").iter();
        lines.map(|line| line["message"].to_string()).collect()
    }

    pub(crate) async fn go(&self, address: &str) {
        self.client.goto(address).await.expect("the page loads");
    }

    /// Clicks the first element, as soon as it is there.
    pub(crate) async fn click(&self, css: &str) {
        self.click_on(Locator::Css(css)).await;
    }

    pub(crate) async fn click_link(&self, text: &str) {
        self.click_on(Locator::LinkText(text)).await;
    }

    async fn click_on(&self, locator: Locator<'_>) {
        let begun = Instant::now();
        loop {
            // A live part can take the element away between the two.
            let clicked = match self.client.find(locator).await {
                Ok(element) => element.click().await,
                Err(error) => Err(error),
            };
            match clicked {
                Ok(()) => return,
                Err(error) => assert!(
                    begun.elapsed() < Duration::from_secs(60),
                    "{locator:?}: {error}"
                ),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) async fn fill(&self, css: &str, text: &str) {
        let element = self.client.find(Locator::Css(css)).await.expect(css);
        element.send_keys(text).await.expect(css);
    }

    /// The text of the page as people see it.
    pub(crate) async fn text(&self) -> String {
        self.value("document.body.innerText")
            .await
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    /// The value of an expression.
    pub(crate) async fn value(&self, expression: &str) -> Value {
        let script = format!("return {expression}");
        self.client
            .execute(&script, Vec::new())
            .await
            .expect(expression)
    }

    /// Waits until the page shows this text, without loading it anew.
    pub(crate) async fn shows(&self, text: &str) {
        self.until(text, async |browser| browser.text().await.contains(text))
            .await;
    }

    pub(crate) async fn shows_no(&self, text: &str) {
        self.until(text, async |browser| !browser.text().await.contains(text))
            .await;
    }

    pub(crate) async fn until(&self, what: &str, mut holds: impl AsyncFnMut(&Self) -> bool) {
        let begun = Instant::now();
        while !holds(self).await {
            let text = self.text().await;
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "in vain: {what}: {text}"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// A server on 127.0.0.1, until it is dropped.
pub(crate) struct Server {
    pub(crate) address: String,
    task: JoinHandle<()>,
}

impl Server {
    pub(crate) async fn start(router: Router) -> Self {
        Self::start_at("127.0.0.1:0", router).await
    }

    pub(crate) async fn start_at(address: &str, router: Router) -> Self {
        let listener = TcpListener::bind(address).await.expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("its address"));
        let task = tokio::spawn(async move {
            axum::serve(listener, router).await.expect("it serves");
        });
        Server { address, task }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}
