-- One request again and again, its body from a file; at the end one line of JSON, of which _wrk.py makes a `Load`.

function init(args)
    local file = assert(io.open(args[1], "rb"))
    wrk.method, wrk.body = "POST", file:read("*a")
    wrk.headers["Content-Type"], wrk.headers["Accept"] = args[2], args[3]
    file:close()
    local pause = tonumber(args[4])
    if pause > 0 then
        delay = function() return pause end
    end
end

function done(summary, latency, requests)
    local errors = summary.errors
    local line = '\n{"answers": %d, "seconds": %.6f, "p50": %.6f, "p99": %.6f, "refused": %d, "broken": %d}\n'
    local broken = errors.connect + errors.read + errors.write + errors.timeout
    io.write(line:format(summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e6,
        latency:percentile(99) / 1e6, errors.status, broken))
end
