-- Posts one body again and again; prints what loading.py reads. BODY: file, HEADERS: more headers, one "Name: value" per line.
local file = assert(io.open(os.getenv("BODY"), "rb"))
wrk.method = "POST"
wrk.body = file:read("*a")
file:close()
wrk.headers["Content-Type"] = "application/octet-stream"
for name, value in (os.getenv("HEADERS") or ""):gmatch("([^:\n]+): ([^\n]+)") do
  wrk.headers[name] = value
end
done = function(summary, latency)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  io.write(string.format('RESULT {"requests":%d,"seconds":%.6f,"failed":%d,"p50_us":%d,"p99_us":%d}\n',
    summary.requests, summary.duration / 1e6, failed, latency:percentile(50), latency:percentile(99)))
end
