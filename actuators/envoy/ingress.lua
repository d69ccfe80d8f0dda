-- The proxy marks two facts of each request: an expired lease, and the end of its answer.
-- Bodies are scanned chunk by chunk in passing; nothing is buffered.

local NAMESPACE = "flettner"
local TAIL = 64 -- bytes kept of the chunk before, longer than any pattern below
local find, sub = string.find, string.sub

local function note(handle, key, value)
  handle:streamInfo():dynamicMetadata():set(NAMESPACE, key, value)
end

local function spend_lease(handle)
  local route = handle:metadata()
  local expires_ms = route:get("lease_expires_ms")
  if expires_ms == nil then
    return
  end
  local left_ms = expires_ms - handle:timestamp()
  -- more time left than the lease had: the clock was set back, which must not extend the lease
  if left_ms <= 0 or left_ms > route:get("lease_ms") + 1000 then
    note(handle, "lease", "expired")
    handle:clearRouteCache()
  end
end

local function holds(handle, media_type)
  return find(handle:headers():get("content-type") or "", media_type, 1, true) ~= nil
end

-- Whether the path is one of `DENIED`, as the server reads it: below any root path, with escapes decoded.
local function is_denied(path)
  local decoded = path:gsub("%?.*", ""):gsub("%%(%x%x)", function(hex) return string.char(tonumber(hex, 16)) end)
  return DENIED[decoded:match("([^/]*)/*$")] ~= nil
end

function envoy_on_request(handle)
  if is_denied(handle:headers():get(":path") or "") then
    handle:respond({[":status"] = "404", ["content-type"] = "application/json"}, '{"detail":"Not Found"}')
    return
  end
  spend_lease(handle)
  note_client(handle)
  if not holds(handle, "json") then
    return
  end
  local tail = ""
  for chunk in handle:bodyChunks() do
    local text = tail .. chunk:getBytes(0, chunk:length())
    if find(text, '"stream"', 1, true) and find(text, '"stream"%s*:%s*true') then
      note(handle, "stream", true)
      return
    end
    tail = sub(text, -TAIL)
  end
end

-- Server-sent events in `text` that were not complete in its first `known` bytes.
local function count_events(text, known)
  local events = 0
  local at = find(text, "\ndata:", known > 4 and known - 4 or 1, true)
  while at do
    events = events + 1
    at = find(text, "\ndata:", at + 6, true)
  end
  return events
end

function envoy_on_response(handle)
  if handle:headers():get(":status") ~= "200" then
    return
  end
  local events = holds(handle, "text/event-stream")
  if not events and not holds(handle, "json") then
    return
  end
  local tokens, done = 0, false
  local tail = "\n"
  for chunk in handle:bodyChunks() do
    local text = tail .. chunk:getBytes(0, chunk:length())
    if events then
      tokens = tokens + count_events(text, #tail)
      if find(text, '"error"', 1, true) and (find(text, '\ndata:%s*{%s*"error"') or find(text, '\ndata:%s*{%s*"object"%s*:%s*"error"')) then
        note(handle, "error", true)
      end
      if not done and find(text, "[DONE]", 1, true) and find(text, "\ndata:%s*%[DONE%]") then
        done = true -- set at once: clients hang up without waiting for the end of the body
        note(handle, "done", true)
        note(handle, "tokens", tokens - 1)
      end
    end
    if find(text, '"abort"', 1, true) and find(text, '"finish_reason"%s*:%s*"abort"') then
      note(handle, "aborted", true)
    end
    tail = sub(text, -TAIL)
  end
  if events then
    note(handle, "events", true)
    if not done then
      note(handle, "tokens", tokens)
    end
  end
end
