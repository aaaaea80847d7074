import json, random
random.seed(7)
cases=[]
def meta(**k): return dict(name="x", **k)
# strategic
def container(rng, names, patch=False):
    c={"name": rng.choice(names)}
    if rng.random()<.7: c["image"]=rng.choice(["i","j",None] if patch else ["i","j"])
    if rng.random()<.5: c["env"]=[{"name":n,"value":rng.choice("12")} for n in rng.sample("ABCD",rng.randint(1,3))]
    if rng.random()<.5: c["command"]=[rng.choice("xy")]
    if rng.random()<.5: c["ports"]=[{"containerPort":p,"protocol":"TCP"} for p in rng.sample([80,81,82],rng.randint(1,2))]
    if patch and rng.random()<.2: c={"name":c["name"],"$patch":"delete"}
    return c
def uniq(l):
    seen=[];out=[]
    for i in l:
        if i["name"] not in seen: seen.append(i["name"]); out.append(i)
    return out
def podspec(rng,patch=False):
    s={"containers":uniq([container(rng,list("abcd"),patch) for _ in range(rng.randint(1,4))])}
    if rng.random()<.5: s["nodeSelector"]={k:(rng.choice(["1","2",None]) if patch else rng.choice("12")) for k in rng.sample("pqr",2)}
    if rng.random()<.5: s["tolerations"]=[{"key":rng.choice("kl")}]
    if rng.random()<.4: s["volumes"]=uniq([{"name":rng.choice("vw"),"emptyDir":{}} for _ in range(2)])
    if rng.random()<.3: s["hostname"]=(rng.choice(["h",None]) if patch else "h")
    return s
def m(rng,patch=False):
    d={"name":"x"}
    if rng.random()<.6: d["finalizers"]=rng.sample(["f","g","h"],rng.randint(1,2))
    if rng.random()<.6: d["labels"]={k:rng.choice("12") for k in rng.sample("lmn",rng.randint(1,2))}
    if patch and rng.random()<.3: d["$deleteFromPrimitiveList/finalizers"]=["f"]
    return d
for i in range(60):
    o={"metadata":m(random),"spec":podspec(random)}
    p={"metadata":m(random,True),"spec":podspec(random,True)}
    if random.random()<.4:
        names=[c["name"] for c in p["spec"]["containers"] if "$patch" not in c]+[c["name"] for c in o["spec"]["containers"]]
        dele=[c["name"] for c in p["spec"]["containers"] if "$patch" in c]
        names=[n for n in dict.fromkeys(names) if n not in dele and random.random()<.9 or n in [c["name"] for c in p["spec"]["containers"] if "$patch" not in c]]
        random.shuffle(names)
        if names: p["spec"]["$setElementOrder/containers"]=[{"name":n} for n in names]
    cases.append({"kind":"Pod","original":o,"patch":p})
# apply
for i in range(60):
    steps=[]
    kind=random.choice(["Pod","Deployment"])
    def obj():
        s=podspec(random)
        if kind=="Deployment":
            d={"template":{"spec":s}}
            if random.random()<.6: d["replicas"]=random.choice([1,2])
            if random.random()<.4: d["selector"]={"matchLabels":{"a":random.choice("xy")}}
            s=d
        return {"metadata":m(random),"spec":s}
    for j in range(random.randint(2,6)):
        steps.append({"op":"update" if random.random()<.35 else "apply","manager":random.choice(["one","two","three"]),"force":random.random()<.6,"object":obj()})
    cases.append({"kind":kind,"steps":steps})
json.dump(cases,open("cases.json","w"))
