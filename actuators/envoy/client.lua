-- The proxy tells clients apart for the judge: by their address, their key and their session. Of each it notes
-- which of 64 buckets a hash of it falls in, six bits, from which nobody can tell the client or its key.

local BUCKETS = 64
local HASHED = 256 -- last bytes of a value: where a signed token differs from others, and a bound of the work

-- Jenkins' one-at-a-time hash.
local function bucket(text)
  if text == nil or text == "" then
    return "-"
  end
  local hash = 0
  for at = math.max(1, #text - HASHED + 1), #text do
    hash = bit.tobit(hash + string.byte(text, at))
    hash = bit.tobit(hash + bit.lshift(hash, 10))
    hash = bit.bxor(hash, bit.rshift(hash, 6))
  end
  hash = bit.tobit(hash + bit.lshift(hash, 3))
  hash = bit.bxor(hash, bit.rshift(hash, 11))
  return tostring(bit.band(hash + bit.lshift(hash, 15), BUCKETS - 1))
end

-- The address without its port; of an IPv6 address the network, first 64 bits, which belongs to one client.
local function network(address)
  local inner = address:match("^%[([%x:%.]*)")
  if inner == nil then
    return address:match("^[^:]*")
  end
  local head, tail = {}, {}
  local compressed = string.find(inner, "::", 1, true)
  local before = compressed and string.sub(inner, 1, compressed - 1) or inner
  for group in before:gmatch("%x+") do
    head[#head + 1] = group
  end
  for group in (compressed and string.sub(inner, compressed + 2) or ""):gmatch("%x+") do
    tail[#tail + 1] = group
  end
  while #head + #tail < 8 do
    head[#head + 1] = "0"
  end
  return table.concat(head, ":", 1, math.min(4, #head))
end

local function note_client(handle)
  local headers = handle:headers()
  local address = network(handle:streamInfo():downstreamDirectRemoteAddress())
  local key = headers:get("authorization") or headers:get("x-api-key")
  headers:replace(CLIENT_HEADER, bucket(address) .. "." .. bucket(key) .. "." .. bucket(headers:get(SESSION_HEADER)))
end
