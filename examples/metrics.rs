//! Serves the metrics of a scheduler and a map, in a few lines of the standard library.
//!
//! ```sh
//! cargo run --release --example metrics          # reads its own page once, and ends
//! cargo run --release --example metrics -- 9898  # serves Prometheus for two minutes
//! ```
//!
//! The file `prometheus.yml` for the second form:
//!
//! ```yaml
//! scrape_configs:
//!   - job_name: example
//!     scrape_interval: 2s
//!     static_configs:
//!       - targets: ["127.0.0.1:9898"]
//! ```

use std::error::Error;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use tourbillon::metrics::Metrics;
use tourbillon::{ExpiryMap, Handle, Period, Scheduler};

/// How long the program serves if it was given a port.
const SERVED: Duration = Duration::from_secs(120);

/// How long a client may take to send its request, or to read its answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// The instances that are watched.
#[derive(Clone)]
struct Watched {
    requests: Handle<u64>,
    sessions: ExpiryMap<u64, String>,
}

impl Watched {
    fn metrics(&self) -> Metrics {
        let mut metrics = self.requests.metrics();
        metrics.extend(self.sessions.metrics());
        metrics
    }

    /// Answers one request.
    fn serve(&self, mut stream: &TcpStream) -> io::Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        // No client may fill the memory.
        let mut request = BufReader::new(stream.take(8 * 1024));
        let mut first = String::new();
        request.read_line(&mut first)?;
        let mut line = String::new();
        while request.read_line(&mut line)? > 0 && !line.trim_end().is_empty() {
            line.clear();
        }
        let is_known = first.starts_with("GET /metrics ");
        let (status, content, body) = match is_known {
            true => ("200 OK", Metrics::OPENMETRICS, self.metrics().to_string()),
            false => ("404 Not Found", "text/plain", "see /metrics\n".to_owned()),
        };
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content}\r\nContent-Length: {length}\r\n\
             Connection: close\r\n\r\n{body}"
        );
        stream.write_all(answer.as_bytes())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let port: Option<u16> = std::env::args()
        .nth(1)
        .map(|port| port.parse())
        .transpose()?;
    let scheduler = Scheduler::<u64>::builder().name("requests").build()?;
    let sessions = ExpiryMap::<u64, String>::builder()
        .name("sessions")
        .time_to_idle(Duration::from_secs(1))
        .build(|_, _| ())?;
    let watched = Watched {
        requests: scheduler.handle(),
        sessions,
    };

    // Something to look at: 100 requests a second, of which each tenth times out.
    let work = Scheduler::<&str>::builder().shards(1).workers(1).build()?;
    let load = watched.clone();
    work.handle().repeat(
        "load",
        Period::fixed_rate(Duration::from_millis(10)),
        move |round| {
            let request = round.number();
            let limit = Duration::from_millis(50);
            // Refused only by a scheduler that is shut down.
            let _ = load.requests.schedule(request, limit, |_| ());
            let _ = load.sessions.insert(request % 64, "Ada".to_owned());
            if request % 10 != 0 {
                load.requests.cancel(&request);
            }
        },
    )?;

    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port.unwrap_or(0)))?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming() {
            // A client that breaks off harms nobody else.
            let _ = stream.and_then(|stream| watched.serve(&stream));
        }
    });
    match port {
        Some(_) => {
            writeln!(io::stdout(), "http://{address}/metrics, for {SERVED:?}")?;
            thread::sleep(SERVED);
        }
        None => {
            // Until some requests have timed out.
            thread::sleep(Duration::from_millis(300));
            print_lateness(address)?;
        }
    }
    Ok(())
}

/// Reads the page, and prints what it says about the lateness of request timeouts.
fn print_lateness(address: SocketAddr) -> Result<(), Box<dyn Error>> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let mut out = io::stdout();
    let of_requests = |line: &&str| {
        line.contains("tourbillon_lateness_seconds") && !line.contains("type=\"map\"")
    };
    for line in answer.lines().filter(of_requests) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}
